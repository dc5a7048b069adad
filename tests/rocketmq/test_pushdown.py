"""Generated predicates over generated stores: a plan with them reads what a filter in Python leaves of all rows."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage_core.store import Mode, Predicate, Scan, ScanRequest
from tests.reference.served import place, read
from tests.support.rocketmq_predicates import STORES, alternatives, holds, made, simple
from tests.support.sampling import WHOLE

pytestmark = pytest.mark.sampled


@settings(max_examples=600 if WHOLE else 200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    seed=st.integers(0, STORES - 1),
    predicates=st.lists(simple() | simple() | alternatives(), min_size=1, max_size=4).map(tuple),
    mode=st.sampled_from(Mode),
    use_index=st.booleans(),
)
def test_pushed_is_what_python_leaves(
    seed: int, predicates: tuple[Predicate, ...], mode: Mode, use_index: bool
) -> None:
    directory, rows = made(seed)
    expected = [row for row in rows if all(holds(predicate, row) for predicate in predicates)]
    got = read(directory, ScanRequest(predicates=predicates, mode=mode, use_index=use_index))
    for row in got:
        assert row.pop("corruption", None) is None
    assert sorted(got, key=place) == sorted(expected, key=place)


@settings(max_examples=150 if WHOLE else 50, deadline=None)
@given(
    seed=st.integers(0, STORES - 1), predicates=st.lists(simple() | alternatives(), min_size=1, max_size=3).map(tuple)
)
def test_in_the_log_alone(seed: int, predicates: tuple[Predicate, ...]) -> None:
    directory, _ = made(seed)
    rows = read(directory, ScanRequest(scan=Scan.LOG))
    got = read(directory, ScanRequest(scan=Scan.LOG, predicates=predicates))
    assert got == [row for row in rows if all(holds(predicate, row) for predicate in predicates)]


@settings(max_examples=100 if WHOLE else 50, deadline=None)
@given(
    seed=st.integers(0, STORES - 1),
    columns=st.lists(st.sampled_from(["topic", "queueOffset", "size", "body"]), min_size=1, max_size=3, unique=True),
    predicate=simple(),
)
def test_filtered_columns_need_not_be_shown(seed: int, columns: list[str], predicate: Predicate) -> None:
    directory, rows = made(seed)
    expected = [{name: row[name] for name in columns} for row in rows if holds(predicate, row)]
    got = read(directory, ScanRequest(predicates=(predicate,), columns=tuple(columns)))
    assert sorted(got, key=repr) == sorted(expected, key=repr)
