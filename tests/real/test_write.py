"""Stores that mqstore writes, opened by the real 4.9.3 and 5.3.3: every message and key is as mqstore reads it.

`MQSTORE_WRITES` sets the number of seeds (30 in `make test-real-full`), `MQSTORE_SEED` the first one.
"""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from storage_core import open_store
from storage_core.errors import MqStoreError
from tests.golden import archive
from tests.real import random_store, truth
from tests.real.appended import append
from tests.real.case import has_5x_marks
from tests.real.oracle import Oracle
from tests.real.written_rows import geometry, key_problems, row_problems, time_problems
from tests.reference.served import AS_BROKER, in_partitions, read
from tests.support.rocketmq_copies import write_options

pytestmark = pytest.mark.real

FIRST_SEED = int(os.environ.get("MQSTORE_SEED", "20261121"))
SEEDS = range(FIRST_SEED, FIRST_SEED + int(os.environ.get("MQSTORE_WRITES", "3")))


def real_problems(directory: Path, settings: dict[str, Any], versions: tuple[str, ...]) -> list[str]:
    """All differences between the real stores' answers about a directory and mqstore's."""
    lines = []
    for version in versions:
        automatic = (version == "533") == has_5x_marks(directory)
        stock = truth.ask(version, directory, settings)
        if stock.never_answers:
            lines.append(f"{version}: {stock.notes}")
            continue
        lines += [f"{version}: {line}" for line in truth.check(directory, stock, set(), 3, automatic)]
        with open_store(str(directory)) as store:
            ends = {(queue.topic, queue.queue_id): queue.stop for queue in store.queues()}
        lines += [f"{version}: {line}" for line in truth.check_ends(stock, ends)]
    return lines


@pytest.mark.parametrize("seed", SEEDS)
def test_new_stores_and_two_appends(seed: int, tmp_path: Path) -> None:
    r = random.Random(seed)
    settings = geometry(r)
    directory, rows = tmp_path / "made" / "store", []
    for number in range(3):
        # A job without rows makes an empty store, so the geometry is passed until there is a log file.
        options = {} if any((directory / "commitlog").glob("0*")) else write_options(settings)
        rows += append(directory, r, settings["mappedFileSizeCommitLog"], **options)
        problems = row_problems(rows, directory) if rows else []
        if number == 2:
            problems += real_problems(directory, settings, ("493", "533"))
        assert not problems, (number, settings, problems)
    keys = [(row["topic"], row["key"].split(" ")[0]) for row in rows if row.get("key")]
    keys += [(row["topic"], dict(row["properties"])["UNIQ_KEY"]) for row in rows
             if row.get("properties") and "UNIQ_KEY" in dict(row["properties"])]  # fmt: skip
    for version in ("493", "533"):
        copy = tmp_path / version / "store"
        shutil.copytree(directory, copy)
        sampled = r.sample(keys, min(len(keys), 60))
        assert not key_problems(version, copy, settings, directory, sampled)
        assert not time_problems(version, copy, settings, directory, r)


@pytest.mark.parametrize("seed", SEEDS)
def test_appends_to_random_stores_of_the_real_systems(seed: int, tmp_path: Path) -> None:
    r = random.Random(f"append {seed}")
    made = random_store.make(seed, tmp_path / "made" / "store")
    directory, size = made.directory, made.settings["mappedFileSizeCommitLog"]
    # A store whose log has a file states its own sizes, except those of the index.
    tells = any((directory / "commitlog").glob("0*"))
    given = write_options(made.settings)
    options = {name: value for name, value in given.items() if name.startswith("index") or not tells}
    before = archive.fingerprint(directory)
    own = "533" if has_5x_marks(directory) else "493"
    earlier = truth.ask(own, directory, made.settings)
    try:
        rows = append(directory, r, size, **options)
    except MqStoreError as error:
        assert "scan=log" in str(error), (made.story, error)  # noqa: PT017
        after = {name: found for name, found in archive.fingerprint(directory).items() if ".mqstore" not in name}
        assert {n: f[1:] for n, f in after.items()} == {n: f[1:] for n, f in before.items()}
        return
    problems = real_problems(directory, made.settings, (own,))
    later = truth.ask(own, directory, made.settings)
    assert len(later.messages) == len(earlier.messages) + len(rows), (
        made.story,
        len(earlier.messages),
        len(later.messages),
    )
    assert not problems, (made.story, problems)
    if rows:
        problems = appended_key_problems(own, directory, made.settings, rows[:: len(rows) // 20 + 1])
        if own == "533":
            copy = shutil.copytree(directory, tmp_path / "timed" / "store")
            problems += time_problems(own, copy, made.settings, directory, r)
    assert not problems, (made.story, problems)


@pytest.mark.parametrize("name", [n for n in archive.names() if not n.startswith("damaged-")])
def test_appends_to_fixtures(name: str, tmp_path: Path) -> None:
    r = random.Random(name)
    directory = archive.unpack(name, tmp_path / "made")
    settings = archive.info(name)["settings"]
    version = "533" if name.endswith("5.3.3") else "493"
    earlier = truth.ask(version, directory, settings)
    rows = append(directory, r, settings.get("mappedFileSizeCommitLog", 1 << 30))
    rows += append(directory, r, settings.get("mappedFileSizeCommitLog", 1 << 30))
    later = truth.ask(version, directory, settings)
    assert len(later.messages) == len(earlier.messages) + len(rows)
    assert not real_problems(directory, settings, (version,))


def appended_key_problems(
    version: str, directory: Path, settings: dict[str, Any], rows: list[dict[str, Any]]
) -> list[str]:
    """Keys of appended rows that the real store does not find, or finds at other addresses than mqstore."""
    lines = []
    served = {row["physicalOffset"]: row for row in read(directory, in_partitions(1, **AS_BROKER))}
    copy = shutil.copytree(directory, directory.parent / "keys" / "store")
    with Oracle(version, copy, settings) as oracle:
        oracle.ask(op="wait")
        for row in rows:
            for word in (row.get("key") or "").split():
                answer = oracle.ask(op="query", topic=row["topic"], key=word, max=64, begin=0, end=1 << 62)
                theirs = {message["phy"] for message in answer["msgs"]} & served.keys()
                found = read(directory, in_partitions(1, topics=(row["topic"],), keys=(word,), **AS_BROKER))
                mine = {each["physicalOffset"] for each in found}
                own = {at for at in mine if served[at]["body"] == row["body"]}
                if len(answer["msgs"]) < 60 and not own:
                    lines.append(f"{row['topic']}#{word}: mqstore does not find the row")
                if len(answer["msgs"]) < 60 and not own <= theirs:
                    lines.append(f"{row['topic']}#{word}: the store finds {theirs}, the row lies at {own}")
                if not {at for at in theirs if word in (served[at]["keys"] or ())} <= mine:
                    lines.append(f"{row['topic']}#{word}: the store finds {theirs}, mqstore {mine}")
    return lines


@pytest.mark.parametrize("version", ["493", "533"])
def test_appends_to_a_real_store_of_default_sizes(version: str, tmp_path: Path) -> None:
    r = random.Random(f"defaults {version}")
    directory = tmp_path / "made" / "store"
    directory.mkdir(parents=True)
    with Oracle(version, directory, {}) as oracle:
        for number in range(30):
            answer = oracle.ask(op="put", topic="orders", queueId=number % 3, body=f"real {number}", bornTs=1,
                                props={"KEYS": f"real-{number}", "TAGS": "real"})  # fmt: skip
            assert answer["status"] == "PUT_OK"
        oracle.ask(op="wait")
    rows = append(directory, r, 1 << 30)
    rows += append(directory, r, 1 << 30)
    assert len(truth.ask(version, directory, {}).messages) == 30 + len(rows)
    assert not real_problems(directory, {}, (version,))
    assert not appended_key_problems(version, directory, {}, rows[:10])


@pytest.mark.parametrize("version", ["493", "533"])
def test_a_real_store_goes_on_and_mqstore_again(version: str, tmp_path: Path) -> None:
    r = random.Random(version)
    settings = geometry(r)
    directory = tmp_path / "made" / "store"
    rows = append(directory, r, settings["mappedFileSizeCommitLog"], **write_options(settings))
    with Oracle(version, directory, settings) as oracle:
        for number in range(20):
            answer = oracle.ask(op="put", topic="orders", queueId=number % 3, body=f"real {number}",
                                props={"KEYS": f"real-{number}"}, bornTs=1, bornHost="1.2.3.4:5", storeHost="1.2.3.4:6",
                                flag=0, sysFlag=0, reconsumeTimes=0, pto=0)  # fmt: skip
            assert answer["status"] == "PUT_OK"
        oracle.ask(op="wait")
    rows += append(directory, r, settings["mappedFileSizeCommitLog"])
    assert not real_problems(directory, settings, (version,))
    with open_store(str(directory)) as store:
        assert sum(b.num_rows for b in store.find(key="real-7", topic="orders")) == 1
        assert sum(q.stop - q.start for q in store.queues()) == len(rows) + 20
