"""`recovery.dets` of a real node with flipped bits: mqstore finds the terms that Erlang's dets finds.

If dets fails on one key it answers none after it, and which queue a node looks up first is unknown to us: mqstore then
uses the terms of no queue. `MQSTORE_FLIPS` sets the number of flipped bits.
"""

from __future__ import annotations

import base64
import os
import random
import subprocess
from pathlib import Path

import pytest

from storage_core.errors import FormatError
from storage_core.formats.rabbitmq.erlang import dets, external_term
from storage_core.rabbitmq.disk import recovery_terms
from storage_core.rabbitmq.disk.recovery_terms import QueueTerms
from tests.rabbitmq import golden

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]

SEED = os.environ.get("MQSTORE_SEED", "20261121")
FLIPS = int(os.environ.get("MQSTORE_FLIPS", "2000"))
ORACLE = Path(__file__).with_name("dets_oracle.escript")


def by_mqstore(data: bytes) -> dict[str, QueueTerms]:
    try:
        return recovery_terms.decode(data)
    except FormatError:
        return {}


def by_dets(words: list[str]) -> dict[str, QueueTerms]:
    if "refused" in words or "error" in words:
        return {}
    objects = [external_term.decode(base64.b64decode(text)) for text in words if text != "none"]
    return {terms.directory: terms for terms in map(recovery_terms.terms_of, objects) if terms is not None}


def test_the_terms_of_damaged_tables_are_those_that_dets_finds(tmp_path: Path) -> None:
    table = golden.unpack("s1_mixed_clean_idle", tmp_path) / golden.DEFAULT_VHOST / "recovery.dets"
    data = table.read_bytes()
    keys = sorted(recovery_terms.decode(data))
    # Most of a table is slots without an object: a tenth of the flips are among these bits.
    used = [8 * at + bit for at in range(len(data)) for bit in range(8) if data[at] or at < dets.HEADER.size]
    spare = sorted({8 * at + bit for at in range(len(data)) for bit in range(8)} - set(used))
    chance = random.Random(SEED)
    flips = chance.sample(used, min(FLIPS, len(used))) + chance.sample(spare, min(FLIPS // 10, len(spare)))
    (tmp_path / "bits").write_text(f"{[-1, *flips]}.\n")
    command = ["escript", str(ORACLE), str(table), str(tmp_path), str(tmp_path / "bits"), *keys]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    wrong, found = [], 0
    for line in run.stdout.splitlines():
        if not line[:1].isdigit() and not line.startswith("-1 "):
            continue
        bit, *words = line.split()
        flipped = bytearray(data)
        if int(bit) >= 0:
            flipped[int(bit) // 8] ^= 1 << int(bit) % 8
        ours, theirs = by_mqstore(bytes(flipped)), by_dets(words)
        found += bool(theirs)
        if differing := [key for key in keys if ours.get(key) != theirs.get(key)]:
            wrong.append(f"bit {bit}: {len(differing)} of {len(keys)} queues, {ours.get(differing[0])} by mqstore")
    assert len(run.stdout.splitlines()) > len(flips)
    assert found > len(flips) // 4
    assert not wrong, f"{len(wrong)} of {len(flips)}:\n" + "\n".join(wrong[:20])
