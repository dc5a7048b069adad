"""Hosts and hex ids of many messages, made together, equal those made one by one."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from storage_core.formats.columns import followed_by, hex_text, host_text, masked, shown_host
from storage_core.formats.spans import FEW

pytestmark = pytest.mark.usefixtures("either_loops")

IPV4 = st.binary(min_size=8, max_size=8)
IPV6 = st.binary(min_size=20, max_size=20)
hosts = st.one_of(
    st.lists(IPV4, min_size=1, max_size=3 * FEW),
    st.lists(IPV4 | IPV6 | st.just(b""), min_size=1, max_size=3 * FEW),
    st.builds(lambda host, count: [host] * count, IPV4 | IPV6, st.integers(1, 3 * FEW)),
)


@settings(max_examples=200, deadline=None)
@given(packed=hosts, left_out=st.integers(0, 3))
@example(packed=[b""] * (FEW + 1), left_out=0)
def test_hosts(packed: list[bytes], left_out: int) -> None:
    column = pa.array(packed, pa.binary()).slice(left_out)
    assert host_text(column).to_pylist() == [shown_host(value) for value in packed[left_out:]]


@settings(max_examples=200, deadline=None)
@given(packed=hosts, left_out=st.integers(0, 3), number=st.integers(-(1 << 63), (1 << 63) - 1))
def test_hex_ids(packed: list[bytes], left_out: int, number: int) -> None:
    rows = packed[left_out:]
    tail = number.to_bytes(8, "big", signed=True)
    column = pa.array(packed, pa.binary()).slice(left_out)
    ids = followed_by(column, np.full(len(rows), number, np.int64))
    assert ids.to_pylist() == [host + tail for host in rows]
    assert hex_text(ids).to_pylist() == [(host + tail).hex().upper() for host in rows]
    assert hex_text(ids.slice(1)).to_pylist() == [(host + tail).hex().upper() for host in rows[1:]]


@settings(max_examples=100, deadline=None)
@given(values=st.lists(st.binary(max_size=5), max_size=9))
def test_hex_of_any_length(values: list[bytes]) -> None:
    assert hex_text(pa.array(values, pa.binary())).to_pylist() == [value.hex().upper() for value in values]
    assert hex_text(pa.array(values, pa.binary()), lower=True).to_pylist() == [value.hex() for value in values]


@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.int64()])
def test_masked_slices(kind: pa.DataType) -> None:
    """PyArrow before 24 returns texts past the end of the bytes if it is given one null for all."""
    values = pa.array([1, 22, None, 333, 4, 55]).cast(pa.string()).cast(kind)
    for start, stop in combinations(range(len(values) + 1), 2):
        part = values[start:stop]
        found = masked(part, np.arange(start, stop) % 3 > 0)
        found.validate(full=True)
        assert found.to_pylist() == [each if at % 3 else None for at, each in enumerate(part.to_pylist(), start)]
