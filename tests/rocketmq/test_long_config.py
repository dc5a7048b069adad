"""Config files that no broker wrote: as long as a log, of which only the start is read, or with strange numbers."""

from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import pytest

from storage_core import open_store
from storage_core.errors import CorruptionError
from storage_core.rocketmq.disk import config_files
from tests.golden import archive

LENGTH = 2 << 30


@pytest.mark.parametrize("name", ["topics.json", "consumerOffset.json", "../checkpoint"])
def test_a_long_file_allocates_nothing(tmp_path: Path, name: str) -> None:
    store = archive.unpack("mixed-4.9.3", tmp_path)
    (store / "config").mkdir(exist_ok=True)
    path = store / "config" / name
    path.touch()
    os.truncate(path, LENGTH)
    tracemalloc.start()
    try:
        with open_store(str(store)) as opened:
            for view in ("topics", "queues"):
                assert list(opened.view(view))
            findings = [finding for finding in opened.verify() if finding.file == os.path.relpath(path, store)]
            if name == "consumerOffset.json":
                with pytest.raises(CorruptionError, match="not a JSON object"):
                    list(opened.view("offsets"))
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()
    assert [finding.length for finding in findings] == [LENGTH]


def test_a_long_object_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_files, "MAX_SIZE", 1 << 20)
    store = archive.unpack("mixed-4.9.3", tmp_path)
    (store / "config").mkdir(exist_ok=True)
    (store / "config" / "consumerOffset.json").write_bytes(b'{"offsetTable":{' + b" " * (1 << 20) + b"}}")
    with open_store(str(store)) as opened, pytest.raises(CorruptionError, match="longer than the 1 MiB"):
        list(opened.view("offsets"))


def test_a_write_does_not_replace_long_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = archive.unpack("broker-4.9.3", tmp_path)
    monkeypatch.setattr(config_files, "MAX_SIZE", 1 << 20)
    before = {}
    for name in ("topics.json", "consumerOffset.json"):
        path = store / "config" / name
        before[path] = path.read_bytes().rstrip() + b" " * (1 << 20)
        (store / "config" / f"{name}.bak").write_bytes(path.read_bytes())
        path.write_bytes(before[path])
    with open_store(str(store)) as opened:
        with pytest.raises(CorruptionError, match=r"topics\.json.*longer than the 1 MiB.*move it away"):
            opened.begin_job()
        with pytest.raises(CorruptionError, match=r"consumerOffset\.json.*longer than the 1 MiB"):
            opened.set_group_offsets("group", {("any", 0): 7})
    assert {path: path.read_bytes() for path in before} == before


def test_a_broken_file_does_not_replace_its_backup(tmp_path: Path) -> None:
    store = archive.unpack("broker-4.9.3", tmp_path)
    path, backup = store / "config" / "consumerOffset.json", store / "config" / "consumerOffset.json.bak"
    good = path.read_bytes()
    backup.write_bytes(good)
    path.write_bytes(b"\0" * 100)
    with open_store(str(store)) as opened:
        (before,) = opened.view("offsets")
        opened.set_group_offsets("new-group", {("any", 0): 7})
        (after,) = opened.view("offsets")
        assert len(after) == len(before) + 1
    assert backup.read_bytes() == good


STRANGE = ("1" * 5000, "\u00b2", "-", "x")


def test_strange_numbers_are_no_numbers(tmp_path: Path) -> None:
    store = archive.unpack("broker-4.9.3", tmp_path)
    keys = ",".join(f'"{key}":3' for key in (*STRANGE, "2"))
    for name in ("delayOffset.json", "consumerOffset.json"):
        table = f"{{{keys}}}" if name == "delayOffset.json" else f'{{"any@strange":{{{keys}}},"none@strange":3}}'
        (store / "config" / name).write_text(f'{{"offsetTable":{table}}}')
    with open_store(str(store)) as opened:
        assert opened.state().delay_offsets == {2: 3}
        (offsets,) = opened.view("offsets")
        assert offsets["queueId"].to_pylist() == [2]
        opened.set_group_offsets("other", {("any", 0): 7})
        assert set(next(opened.view("offsets"))["group"].to_pylist()) == {"other", "strange"}
    (store / "config" / "topics.json").write_text(f'{{"topicConfigTable":{{"any":{{"perm":{STRANGE[0]}}}}}}}')
    with open_store(str(store)) as opened:
        assert list(opened.view("topics"))
        assert "unreadable config file" in {finding.kind for finding in opened.verify()}
