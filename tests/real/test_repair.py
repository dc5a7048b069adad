"""Damaged random stores, repaired: the real stores load them and serve everything that they served before and every
intact record of the log; queues and index are those that the real stores build from the same log.

`MQSTORE_REPAIRS` sets the number of stores, `MQSTORE_SEED` the first seed.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from storage_core import open_store
from storage_core.formats.rocketmq.consumequeue import BLANK_SIZE, QUEUE_ENTRY
from storage_core.store import Mode, Scan, ScanRequest
from tests.golden import archive
from tests.real import random_store, truth
from tests.real.case import Variant, prepare
from tests.real.oracle import Oracle, Settings
from tests.reference.rocketmq_record import MAGIC_V2, Log
from tests.reference.served import read
from tests.support.rocketmq_copies import contents, drop_unused, write_options
from tests.support.rocketmq_files import records

pytestmark = pytest.mark.real

FIRST_SEED = int(os.environ.get("MQSTORE_SEED", "20261121"))
SEEDS = range(FIRST_SEED, FIRST_SEED + int(os.environ.get("MQSTORE_REPAIRS", "2")))
VERSIONS = {"4.9.3": "493", "5.3.3": "533"}
"""The real store for the end of a fixture's name."""


def repaired(store: Path, settings: Settings, target: Path) -> list[str]:
    options: dict[str, Any] = write_options(dict(settings))
    with open_store(str(store), **options) as opened:
        done = list(opened.repair(str(target)))
    with open_store(str(target)) as opened:
        left = [finding for finding in opened.verify() if finding.repairable]
    assert left == [], done
    return done


def intact(store: Path) -> set[int]:
    """Addresses of the intact records of a log that belong in a queue."""
    request = ScanRequest(columns=("physicalOffset", "sysFlag", "body"), scan=Scan.LOG, mode=Mode.DROPMALFORMED)
    return {row["physicalOffset"] for row in read(store, request) if row["sysFlag"] & 0xC in (0, 8)}


def deleted(made: Variant) -> set[int]:
    """Addresses of the records that the store did not serve even as made, because their queue restarted at 0 after
    them.
    """
    request = ScanRequest(columns=("topic", "queueId", "queueOffset", "physicalOffset"), scan=Scan.LOG)
    began = {(row["topic"], row["queueId"]): row["physicalOffset"]
             for row in read(made.directory, request) if row["queueOffset"] == 0}  # fmt: skip
    served = {message["physicalOffset"] for stock in made.truths for message in stock.messages}
    return {row["physicalOffset"] for row in read(made.directory, request)
            if row["physicalOffset"] < began.get((row["topic"], row["queueId"]), 0)} - served  # fmt: skip


def check(variant: Variant, settings: Settings, target: Path, gone: set[int]) -> None:
    logs = list((variant.directory / "commitlog").glob("*"))
    if not logs:
        return
    wanted = intact(variant.directory) - variant.harm.touched - gone
    starts = {row.physical_offset for row in records(variant.directory)} - variant.harm.touched
    done = repaired(variant.directory, settings, target)
    newest = max((fields["magic"] for fields in Log(variant.directory / "commitlog").right_records()), default=0)
    for stock in variant.truths:
        if stock.version == "493" and newest == MAGIC_V2:
            continue  # it ends the log at the first 5.x record that recovery happens to scan
        served = {} if stock.never_answers else {message["physicalOffset"]: message for message in stock.messages}
        after = truth.ask(stock.version, target, settings)
        story = f"{stock.version} {variant.harm.story} {done} {after.notes}"
        assert not after.never_answers, story
        found = {message["physicalOffset"]: message for message in after.messages}
        # A record with a flipped address is served under an address that does not exist.
        lost = (served.keys() & starts) - found.keys()
        assert not lost, (story, sorted(lost))
        own = (stock.version == "533") == variant.has_5x_marks
        if own:
            assert not wanted - found.keys(), (story, sorted(wanted - found.keys()))
        for address in served.keys() & found.keys() & starts:
            assert served[address].get("body64") == found[address].get("body64"), (story, address)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_is_served_after_a_repair(seed: int, tmp_path: Path) -> None:
    case = prepare(seed, tmp_path)
    gone = deleted(case.variants[0])
    for number, variant in enumerate(case.variants[1:]):
        check(variant, case.made.settings, tmp_path / f"repaired-{number}", gone)


@pytest.mark.parametrize("seed", SEEDS)
def test_light_queues_are_those_that_the_real_store_makes(seed: int, tmp_path: Path) -> None:
    made = random_store.make(seed, tmp_path / "store", intact=True, light=True)
    alone, target = tmp_path / "alone", tmp_path / "repaired"
    shutil.copytree(made.directory / "commitlog", alone / "commitlog")
    with open_store(str(made.directory)) as opened:
        assert [finding for finding in opened.verify() if finding.queue is not None] == []
    light = [folder.name for folder in (made.directory / "consumequeue").glob("%LMQ%*")]
    for name in light:
        shutil.rmtree(made.directory / "consumequeue" / name)
    done = repaired(made.directory, made.settings, target)
    with Oracle(made.version, alone, made.settings) as oracle:
        oracle.ask(op="wait")
    ours, theirs = (light_queues(each) for each in (target, alone))
    assert ours.keys() == theirs.keys() == set(light)
    for name, (files, entries) in theirs.items():
        compared = entries["size"] != BLANK_SIZE
        assert ours[name][1].tobytes() == entries[compared].tobytes(), (made, done)
        assert ours[name][0] == files or not compared.all(), (made, done)


def light_queues(store: Path) -> dict[str, tuple[list[tuple[str, bytes]], npt.NDArray[Any]]]:
    """The files of each light queue, and its entries.

    Those of the real store may have fillers before a first message whose queue offset is above 0. Where the log begins
    at 0, a repair puts that message first instead (docs/recovery.md).
    """
    found = {}
    used = drop_unused(contents(store, "consumequeue"))
    for folder in (store / "consumequeue").glob("%LMQ%*"):
        data = b"".join(file.read_bytes() for file in sorted((folder / "0").iterdir()))
        entries = np.frombuffer(data, QUEUE_ENTRY.dtype)
        own = [(name, content) for name, content in used if f"/{folder.name}/" in name]
        found[folder.name] = own, entries[entries["size"] > 0]
    return found


@pytest.mark.parametrize(
    "name", ["damaged-queues-lost-4.9.3", "damaged-index-lost-4.9.3", "mixed-5.3.3", "mixed-4.9.3"]
)
def test_queues_and_index_are_those_that_the_real_store_makes(name: str, tmp_path: Path) -> None:
    store = archive.unpack(name, tmp_path)
    settings = archive.info(name)["settings"]
    alone, target = tmp_path / "alone", tmp_path / "repaired"
    shutil.copytree(store / "commitlog", alone / "commitlog")
    for folder in ("consumequeue", "index"):
        shutil.rmtree(store / folder, ignore_errors=True)
    repaired(store, settings, target)
    with Oracle(VERSIONS[name[-5:]], alone, settings) as oracle:
        assert oracle.loaded
        oracle.ask(op="wait")
    for kind in ("consumequeue", "index"):
        assert drop_unused(contents(target, kind)) == drop_unused(contents(alone, kind))
