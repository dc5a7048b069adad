"""Properties of a few messages, read one by one, equal those of many, read together, and those of the slow way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from storage_core.formats.rocketmq.properties import PropertyColumn, parse
from storage_core.formats.spans import FEW

pytestmark = pytest.mark.usefixtures("either_loops")

NAMES = ("KEYS", "TAGS", "UNIQ_KEY", "KEY", "K")
pieces = st.sampled_from(
    [*(name.encode() for name in NAMES), b"\x01", b"\x02", b"a", b" ", "日本".encode(), b"\xe6\x97", b"\xff", b""]
)
properties = st.lists(pieces, max_size=14).map(b"".join)


def column(rows: list[bytes]) -> PropertyColumn:
    """The rows one after another, each after the two bytes of its length, as in a record."""
    buffer = b"".join(len(row).to_bytes(2, "big") + row for row in rows)
    sizes = np.array([len(row) for row in rows], np.int64)
    return PropertyColumn(np.frombuffer(buffer, np.uint8), np.cumsum(sizes + 2) - sizes, sizes)


@settings(max_examples=200, deadline=None)
@given(rows=st.lists(properties, min_size=FEW + 1, max_size=3 * FEW))
@example(rows=[b""] * FEW + [b"\xe6\x97\x01KEYS\x02\xff\x01KEYS"])  # two malformed names that read the same
def test_a_few_are_as_many(rows: list[bytes]) -> None:
    check(rows)


@settings(max_examples=200, deadline=None)
@given(
    names=st.lists(st.sampled_from([*NAMES, "日本", "a" * 7, "b" * 8, "c" * 9]), min_size=1, max_size=4),
    values=st.lists(pieces.filter(lambda piece: piece != b"\x02"), min_size=4 * 3 * FEW, max_size=4 * 3 * FEW),
    changed=st.none() | st.tuples(st.integers(0, 3 * FEW - 1), properties),
)
def test_messages_with_the_same_names(names: list[str], values: list[bytes], changed: tuple[int, bytes] | None) -> None:
    rest = iter(values)
    rows = [b"\x02".join(name.encode() + b"\x01v" + next(rest) for name in names) for _ in range(3 * FEW)]
    if changed is not None:
        rows[changed[0]] = changed[1]
    check(rows)


def check(rows: list[bytes]) -> None:
    """Compares all queries on the rows together, before and after the query for all pairs, and on a few rows."""
    many, searched = column(rows), column(rows)
    searched.expect(NAMES[1:4])
    parts = [column(rows[at : at + FEW]) for at in range(0, len(rows), FEW)]
    expected = [parse(row) for row in rows]
    for name in NAMES:
        values_of_parts = [value for part in parts for value in part.values(name).to_pylist()]
        assert values_of_parts == many.values(name).to_pylist() == [pairs.get(name) for pairs in expected]
        assert searched.values(name).to_pylist() == values_of_parts
    pairs_of_parts = [pairs for part in parts for pairs in part.pairs().to_pylist()]
    assert pairs_of_parts == many.pairs().to_pylist() == [list(pairs.items()) for pairs in expected]
    for hidden in NAMES:
        shown = [[pair for pair in pairs.items() if pair[0] != hidden] for pairs in expected]
        assert [pairs for part in parts for pairs in part.pairs(hidden).to_pylist()] == shown
        assert many.pairs(hidden).to_pylist() == column(rows).pairs(hidden).to_pylist() == shown
        assert many.pairs(hidden).type == many.pairs().type
    for name in NAMES:
        assert many.values(name).to_pylist() == [pairs.get(name) for pairs in expected]
    assert all(part.values("KEYS").type == many.values("KEYS").type for part in parts)
    assert all(part.pairs().type == many.pairs().type for part in parts)
