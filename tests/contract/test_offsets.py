"""Where a read starts and ends in each queue: `startingOffsets` and `endingOffsets`, as numbers or from the end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from storage_core import open_store
from storage_core.errors import DataLossError, OffsetOutOfRangeError
from storage_core.store import EARLIEST, LATEST, OffsetBound
from tests.contract.engine import Engine, Message, Seen
from tests.contract.messages import COUNTS

ALPHA, BETA = ("alpha", 0), ("beta", 0)
Of = Callable[[str], list[Seen]]


def starting(**offsets: int) -> OffsetBound:
    return OffsetBound(EARLIEST, {(queue, 0): offset for queue, offset in offsets.items()})


def ending(**offsets: int) -> OffsetBound:
    return OffsetBound(LATEST, {(queue, 0): offset for queue, offset in offsets.items()})


def last(count: int, default: int = EARLIEST) -> OffsetBound:
    return OffsetBound(default, last=count)


def cut(of_queue: Of, start: slice) -> list[Seen]:
    """The same slice of each queue."""
    return [row for queue in sorted(COUNTS) for row in of_queue(queue)[start]]


def test_earliest_to_latest_is_everything(engine: Engine, store: Path, everything: list[Seen]) -> None:
    assert sorted(engine.rows(store, start=OffsetBound(EARLIEST), stop=OffsetBound(LATEST))) == everything


def test_latest_as_start_and_earliest_as_end_are_nothing(engine: Engine, store: Path) -> None:
    assert engine.rows(store, start=OffsetBound(LATEST)) == []
    assert engine.rows(store, stop=OffsetBound(EARLIEST)) == []


def test_numbers_are_half_open_and_other_queues_are_whole(engine: Engine, store: Path, of_queue: Of) -> None:
    rows = engine.rows(store, start=starting(alpha=7), stop=ending(alpha=33))
    assert sorted(rows) == of_queue("alpha")[7:33] + of_queue("beta") + of_queue("gamma")
    rows = engine.rows(store, start=starting(alpha=7), stop=ending(beta=2))
    assert sorted(rows) == of_queue("alpha")[7:] + of_queue("beta")[:2] + of_queue("gamma")


def test_a_named_queue_may_be_whole_too(engine: Engine, store: Path, of_queue: Of) -> None:
    """-2 and -1, as in Kafka's source."""
    rows = engine.rows(store, start=starting(alpha=EARLIEST, beta=20), stop=ending(alpha=LATEST, beta=LATEST))
    assert sorted(rows) == of_queue("alpha") + of_queue("beta")[20:] + of_queue("gamma")


def test_a_start_at_the_end_is_nothing_and_no_mistake(engine: Engine, store: Path) -> None:
    assert engine.rows(store, topics=("alpha",), start=starting(alpha=40)) == []
    assert engine.rows(store, topics=("alpha",), start=starting(alpha=9), stop=ending(alpha=9)) == []
    assert engine.rows(store, topics=("alpha",), stop=ending(alpha=0)) == []


def test_offsets_of_queues_that_are_not_selected_say_nothing(engine: Engine, store: Path, of_queue: Of) -> None:
    rows = engine.rows(store, topics=("beta",), start=starting(alpha=99_999, beta=20), stop=ending(alpha=99_999))
    assert sorted(rows) == of_queue("beta")[20:]


# -- counted from the end


@pytest.mark.parametrize("count", [0, 1, 9, 23, 40, 1000])
def test_the_last_of_each_queue(engine: Engine, store: Path, count: int, of_queue: Of) -> None:
    assert sorted(engine.rows(store, start=last(count))) == (cut(of_queue, slice(-count, None)) if count else [])


@pytest.mark.parametrize("count", [0, 1, 9, 23, 40, 1000])
def test_all_but_the_last_of_each_queue(engine: Engine, store: Path, count: int, of_queue: Of) -> None:
    expected = cut(of_queue, slice(None, -count if count else None))
    assert sorted(engine.rows(store, stop=last(count, LATEST))) == expected


@pytest.mark.parametrize(("start", "stop"), [(9, 2), (5, 5), (1000, 3), (40, 39)])
def test_the_last_on_both_sides(engine: Engine, store: Path, start: int, stop: int, of_queue: Of) -> None:
    expected = cut(of_queue, slice(-start, -stop))
    assert sorted(engine.rows(store, start=last(start), stop=last(stop, LATEST))) == expected


def test_the_last_together_with_a_number(engine: Engine, store: Path, of_queue: Of) -> None:
    rows = engine.rows(store, topics=("alpha",), start=last(10), stop=ending(alpha=35))
    assert rows == of_queue("alpha")[30:35]
    rows = engine.rows(store, topics=("alpha",), start=starting(alpha=30), stop=last(5, LATEST))
    assert rows == of_queue("alpha")[30:35]


def test_the_last_counts_messages_that_are_there(engine: Engine, own: Path) -> None:
    """Also if offsets have gaps: after a second job, and after messages have left their queue."""
    engine.lose_first(own, "alpha")
    with open_store(str(own)) as opened:
        opened.append(engine.table([Message("alpha", b"more %d" % number) for number in range(3)]))
    alpha = [row for row in engine.rows(own) if row[0] == "alpha"]
    assert engine.rows(own, topics=("alpha",), start=last(5)) == alpha[-5:]
    assert engine.rows(own, topics=("alpha",), stop=last(5, LATEST)) == alpha[:-5]
    assert engine.rows(own, topics=("alpha",), start=last(5), stop=last(2, LATEST)) == alpha[-5:-2]


@pytest.mark.parametrize("count", [1, 7])
def test_the_last_is_the_same_in_seven_partitions(engine: Engine, store: Path, count: int, of_queue: Of) -> None:
    rows = engine.rows(store, start=last(20), stop=last(3, LATEST), min_partitions=count)
    assert sorted(rows) == cut(of_queue, slice(-20, -3))


# -- invalid offsets, and offsets that no longer exist


def test_a_start_greater_than_the_end_is_a_mistake(engine: Engine, store: Path) -> None:
    with pytest.raises(OffsetOutOfRangeError, match=r"alpha.*\b9\b.*\b3\b"):
        engine.rows(store, start=starting(alpha=9), stop=ending(alpha=3))


def test_fewer_from_the_end_than_the_end_leaves_is_a_mistake(engine: Engine, store: Path) -> None:
    with pytest.raises(OffsetOutOfRangeError, match=r"alpha|beta"):
        engine.rows(store, start=last(2), stop=last(5, LATEST))


@pytest.mark.parametrize("option", ["startingOffsets", "endingOffsets"])
def test_an_offset_after_the_end_names_the_range_and_the_option(engine: Engine, store: Path, option: str) -> None:
    fields = {"start": starting(alpha=41)} if option == "startingOffsets" else {"stop": ending(alpha=41)}
    with pytest.raises(OffsetOutOfRangeError) as caught:
        engine.rows(store, **fields)
    for text in ("OffsetOutOfRangeError: ", "alpha", option, "41", "40", "failOnDataLoss=false"):
        assert text in str(caught.value), text
    assert "\n" not in str(caught.value)


def test_without_fail_on_data_loss_an_offset_after_the_end_is_the_end(
    engine: Engine, store: Path, of_queue: Of
) -> None:
    fields = {"topics": ("alpha",), "fail_on_data_loss": False}
    assert engine.rows(store, start=starting(alpha=99_999), **fields) == []
    assert engine.rows(store, start=starting(alpha=30), stop=ending(alpha=99_999), **fields) == of_queue("alpha")[30:]


def test_an_offset_that_is_gone_is_a_loss_where_nothing_is_acknowledged(engine: Engine, own: Path) -> None:
    first = engine.lose_first(own, "alpha")
    left = [row for row in engine.rows(own) if row[0] == "alpha"]
    assert left[0][1] == first
    fields = {"topics": ("alpha",), "start": starting(alpha=first - 1)}
    if engine.acknowledges:
        assert engine.rows(own, **fields) == left
    else:
        with pytest.raises(DataLossError, match=rf"DataLossError: .*alpha.*\b{first - 1}\b.*failOnDataLoss=false"):
            engine.rows(own, **fields)
    assert engine.rows(own, fail_on_data_loss=False, **fields) == left
    assert engine.rows(own, topics=("alpha",), start=starting(alpha=first)) == left


def test_an_end_that_is_gone_leaves_nothing(engine: Engine, own: Path) -> None:
    first = engine.lose_first(own, "alpha")
    fields = {"topics": ("alpha",), "stop": ending(alpha=first - 1)}
    if engine.acknowledges:
        assert engine.rows(own, **fields) == []
    else:
        with pytest.raises(DataLossError, match="endingOffsets"):
            engine.rows(own, **fields)
    assert engine.rows(own, fail_on_data_loss=False, **fields) == []
