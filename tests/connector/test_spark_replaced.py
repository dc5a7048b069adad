"""A store replaced at the same path between two reads of one session: the second read returns the new rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.replaced_stores import REPLACED, crashed_store


@pytest.mark.parametrize("how", REPLACED)
def test_a_replaced_store_is_read_again(load, tmp_path: Path, how: str) -> None:
    store, other = (
        crashed_store(tmp_path / name, size, count) for name, size, count in [("a", 90, 300), ("b", 131, 500)]
    )
    for size, count in [(90, 300), (131, 500)]:
        sizes = [len(row.body) for row in load(str(store)).select("body").collect()]
        assert sizes == [size] * count
        assert load(str(store), key="ORD-0000000123").count() == 1
        if size == 90:
            REPLACED[how](store, other)
