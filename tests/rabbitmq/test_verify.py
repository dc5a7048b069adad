"""`verify` of a vhost: compares index and message store; finds nothing in what real nodes left, stopped or killed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from storage_core.finding import Finding
from storage_core.rabbitmq import open_store
from tests.golden.archive import fingerprint
from tests.rabbitmq import golden
from tests.support.rabbitmq_damage import first_record, queue_file

DAMAGED = {
    "s13_jtrunc_kill9": {"torn journal"},
    "s13_rdqbadmark_kill9": {"index against message store", "message"},
}
SNAPSHOTS = sorted(path.name[: -len(".tar.gz")] for path in golden.SNAPSHOTS.glob("*.tar.gz"))


def found(store: Path) -> list[Finding]:
    with open_store(str(store)) as opened:
        return list(opened.verify())


def kinds(store: Path) -> set[str]:
    return {finding.kind for finding in found(store)}


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    return golden.unpack("s1_mixed_clean_idle", tmp_path) / golden.DEFAULT_VHOST


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_what_real_nodes_left(name: str, tmp_path: Path) -> None:
    for store in sorted(path.parent for path in golden.unpack(name, tmp_path).rglob(".vhost")):
        before = fingerprint(store)
        wanted = DAMAGED.get(name, set()) if store.name == golden.DEFAULT_VHOST else set()
        assert kinds(store) == wanted
        assert fingerprint(store) == before


def test_what_a_node_does_is_reported(tmp_path: Path) -> None:
    store = golden.unpack("s13_rdqbadmark_kill9", tmp_path) / golden.DEFAULT_VHOST
    index, message = sorted(found(store), key=lambda finding: finding.kind)
    assert (message.file, message.position, message.effect) == ("msg_store_persistent/0.rdq", 0, "skips it")
    assert (index.reason, index.effect) == ("1 messages are in no message file", "forgets them when it starts")


def test_a_segment_of_zeros_is_reported_and_moved_away(clean: Path) -> None:
    blank = queue_file(clean, "b.large", "77.idx")
    blank.write_bytes(bytes(3000))
    (finding,) = found(clean)
    assert (finding.file, finding.length, finding.kind) == (str(blank.relative_to(clean)), 3000, "unexpected file")
    assert (finding.reason, finding.effect) == (
        "only zeros: no node writes such a segment", "takes the segment for empty"
    )  # fmt: skip
    with open_store(str(clean)) as opened:
        opened.repair()
    assert found(clean) == []
    assert not blank.exists()


@pytest.mark.parametrize("data", [b"\x00\x01garbage", b"%% Edit at your own risk!\n{segment_entry_count, 6", b"{a b}."])
def test_a_config_without_terms_counts_as_none(tmp_path: Path, data: bytes) -> None:
    """As on a real node, which treats the file as missing."""
    store = golden.unpack("s5_16384_kill9", tmp_path) / golden.DEFAULT_VHOST
    assert b"16384" in (store / ".config").read_bytes()
    rows = golden.table(store)
    (store / ".config").write_bytes(data)
    assert golden.table(store).equals(rows)
    (finding,) = found(store)
    assert (finding.file, finding.length, finding.effect) == (".config", len(data), "takes 16384 entries a segment")
    with open_store(str(store)) as opened:
        opened.repair()
    assert found(store) == []
    assert golden.table(store).equals(rows)


def test_a_lost_queue_leaves_references(clean: Path) -> None:
    path, _ = first_record(clean, "b.large")
    assert path.parent.name == "msg_store_persistent"
    shutil.rmtree(queue_file(clean, "b.large", ".idx").parent)
    findings = found(clean)
    assert {finding.kind for finding in findings} == {"wrong reference count"}
    assert {finding.effect for finding in findings} == {"never removes the message"}


def test_entries_whose_message_is_gone(clean: Path) -> None:
    path, position = first_record(clean, "b.large")
    with path.open("r+b") as file:
        file.truncate(position + 30)
    findings = [finding for finding in found(clean) if finding.kind == "dangling index entry"]
    assert findings
    assert "b.large" in {finding.queue for finding in findings}
    assert all("is in no message file" in finding.reason for finding in findings)


def test_tables_that_cannot_be_used(clean: Path) -> None:
    (clean / "msg_store_persistent" / "msg_store_index.ets").unlink()
    (finding,) = found(clean)
    assert (finding.kind, finding.effect) == ("unusable tables", "scans the message files instead")
    assert "msg_store_index.ets" in finding.reason


def test_files_that_no_node_writes(clean: Path) -> None:
    (clean / "msg_store_persistent" / "copy of 0.rdq").write_bytes(b"x")
    queue_file(clean, "b.large", ".idx").with_name("notes.txt").write_bytes(b"xx")
    findings = found(clean)
    assert [finding.kind for finding in findings] == ["unexpected file"] * 2
    assert {finding.length for finding in findings} == {1, 2}
