"""Bounds of a selection that need the queues, or that no queue can have."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_core import open_store
from storage_core.errors import OptionError
from storage_core.rocketmq.read.predicates import LAST_OFFSET, bounds_of
from storage_core.store import EARLIEST, Mode, OffsetBound, Predicate, Scan, ScanRequest
from tests.golden.archive import unpack

LARGEST = (1 << 63) - 1


@pytest.mark.parametrize("bound", [OffsetBound(EARLIEST, last=1), OffsetBound(EARLIEST, group="billing")])
@pytest.mark.parametrize(("field", "option"), [("start", "startingOffsets"), ("stop", "endingOffsets")])
def test_a_scan_of_the_log_finds_no_bound_of_the_queues(
    tmp_path: Path, bound: OffsetBound, field: str, option: str
) -> None:
    text = "last:1" if bound.last else "group:billing"
    with open_store(str(unpack("broker-4.9.3", tmp_path))) as store, pytest.raises(OptionError) as caught:
        store.snapshot().plan(ScanRequest(scan=Scan.LOG, **{field: bound}))
    wrong = f"OptionError: option '{option}' = '{text}'"
    assert str(caught.value) == f"{wrong}: is found in the queues, and scan=log reads none; give offsets as JSON"


@pytest.mark.parametrize(
    ("op", "value", "rows"),
    [
        (">", LARGEST, False), (">=", LARGEST, False), ("=", LARGEST, False), ("in", (LARGEST, None), False),
        ("<", -5, False), ("=", -5, False), ("<=", LARGEST, True), (">=", -5, True), ("in", (-5, LARGEST, 0), True),
    ],
)  # fmt: skip
def test_offsets_that_no_message_has(tmp_path: Path, op: str, value: object, rows: bool) -> None:
    predicates = (Predicate("queueOffset", op, value),)
    start, stop = bounds_of(predicates, "queueOffset")
    assert 0 <= start <= stop <= LAST_OFFSET
    with open_store(str(unpack("delay-4.9.3", tmp_path))) as store:
        found = sum(batch.num_rows for batch in store.snapshot().read(ScanRequest(predicates=predicates)))
    assert (found > 0) == rows


@pytest.mark.parametrize("scan", Scan)
@pytest.mark.parametrize("columns", [None, ("topic", "physicalOffset", "corruption"), ("corruption",)])
def test_the_column_corruption_needs_no_other(tmp_path: Path, scan: Scan, columns: tuple[str, ...] | None) -> None:
    """A damaged body is noticed also if the body is no column."""
    root = unpack("damaged-flipped-body-4.9.3", tmp_path)
    damaged = (Predicate("corruption", "is not null"),)
    with open_store(str(root)) as store:
        snapshot = store.snapshot()
        all_rows = snapshot.read(ScanRequest(columns=columns, mode=Mode.PERMISSIVE, scan=scan))
        shown = [row["corruption"] for batch in all_rows for row in batch.to_pylist()]
        assert (len(shown), sum(text is not None for text in shown)) == (556, 1)
        alone = ScanRequest(columns=("topic",), mode=Mode.PERMISSIVE, scan=scan, predicates=damaged)
        assert sum(batch.num_rows for batch in snapshot.read(alone)) == 1
