"""Queues and sets of runs compared with plain lists and dicts."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from storage_core.rabbitmq.index.message_run import IN_RAM, ROW, TO_INDEX, MessageRun, object_array
from storage_core.rabbitmq.paging.message_deque import TAIL_CAPACITY, RunQueue
from storage_core.rabbitmq.paging.pending_acks import PendingAcks


def messages(sequence_ids: list[int], flags: int = IN_RAM) -> MessageRun:
    rows = np.zeros(len(sequence_ids), ROW)
    rows["sequence_id"], rows["flags"] = sequence_ids, flags
    return MessageRun(rows, object_array([b"%d" % sequence_id for sequence_id in sequence_ids]))


def sequence_ids_of(run: MessageRun) -> list[int]:
    assert [b"%d" % sequence_id for sequence_id in run.sequence_ids.tolist()] == run.terms.tolist()
    found: list[int] = run.sequence_ids.tolist()
    return found


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["back", "front", "pop front", "pop back", "peek", "from"]),
        st.sampled_from([0, 1, 2, 5, TAIL_CAPACITY // 4 - 1, TAIL_CAPACITY // 4, 700]),
    ),
    max_size=40,
)


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_a_run_queue_is_a_list(steps: list[tuple[str, int]]) -> None:
    queue, model, low, high = RunQueue(), [], 0, 0
    for step, count in steps:
        if step == "back":
            fresh = list(range(high, high + count))
            queue.push_back(messages(fresh))
            model += fresh
            high += count
        elif step == "front":
            fresh = list(range(low - count, low))
            queue.push_front(messages(fresh))
            model = fresh + model
            low -= count
        elif step == "pop front":
            assert sequence_ids_of(queue.pop_front(count)) == model[:count]
            model = model[count:]
        elif step == "pop back":
            kept = len(model) - min(count, len(model))
            assert sequence_ids_of(queue.pop_back(count)) == model[kept:]
            model = model[:kept]
        elif step == "peek":
            assert sequence_ids_of(queue.peek_front(count)) == model[:count]
            assert sequence_ids_of(queue.peek_back(count)) == model[len(model) - min(count, len(model)) :]
        elif model:
            border = model[0] + count
            assert queue.count_from(border) == sum(sequence_id >= border for sequence_id in model)
        assert len(queue) == len(model)
        if model:
            assert (queue.first_sequence_id(), queue.last_sequence_id()) == (model[0], model[-1])
    assert sequence_ids_of(queue.take_all()) == model


@settings(max_examples=100, deadline=None)
@given(st.sets(st.integers(0, 300)), st.sets(st.integers(0, 300)), st.integers(1, 50))
def test_merging_puts_sequence_ids_in_their_places(held: set[int], returned: set[int], step: int) -> None:
    queue, present = RunQueue(), sorted(held - returned)
    for at in range(0, len(present), step):
        queue.push_back(messages(present[at : at + step]))
    queue.merge(messages(sorted(returned)))
    assert len(queue) == len(held | returned)
    assert sequence_ids_of(queue.take_all()) == sorted(held | returned)


def test_appending_a_queue_empties_it() -> None:
    left, right = RunQueue(), RunQueue()
    left.push_back(messages([1, 2]))
    right.push_back(messages([3]))
    right.push_back(messages(list(range(4, 2000))))
    left.append_queue(right)
    assert (len(left), len(right)) == (1999, 0)
    assert sequence_ids_of(left.take_all()) == list(range(1, 2000))


PENDING = st.lists(
    st.tuples(
        st.sampled_from(["add", "take", "take", "largest", "find"]),
        st.lists(st.integers(0, 12000), max_size=30, unique=True),
        st.sampled_from([0, IN_RAM, IN_RAM | TO_INDEX]),
    ),
    max_size=30,
)


@settings(max_examples=200, deadline=None)
@given(PENDING, st.booleans())
def test_pending_acks_are_a_dict(steps: list[tuple[str, list[int], int]], wide: bool) -> None:
    pending, model = PendingAcks(), {}
    if wide:
        pending.add(messages(list(range(0, 12000, 2)), 0))
        model = dict.fromkeys(range(0, 12000, 2), 0)
    for step, sequence_ids, flags in steps:
        if step == "add":
            fresh = [sequence_id for sequence_id in sequence_ids if sequence_id not in model]
            pending.add(messages(fresh, flags))
            model |= dict.fromkeys(fresh, flags)
        elif step == "take":
            assert sequence_ids_of(pending.take(np.array(sequence_ids, np.int64))) == [
                sequence_id for sequence_id in sequence_ids if sequence_id in model
            ]
            model = {sequence_id: kind for sequence_id, kind in model.items() if sequence_id not in sequence_ids}
        elif step == "largest":
            ram = sorted(sequence_id for sequence_id, kind in model.items() if kind == IN_RAM)
            count = len(sequence_ids)
            expected = ram[len(ram) - min(count, len(ram)) :]
            assert sequence_ids_of(pending.ram.take_largest(count)) == expected
            model = {sequence_id: kind for sequence_id, kind in model.items() if sequence_id not in expected}
        else:
            assert pending.find(np.array(sequence_ids, np.int64)).tolist() == [
                sequence_id in model for sequence_id in sequence_ids
            ]
        assert len(pending) == len(model)
        assert pending.sequence_ids().tolist() == sorted(model)
        assert len(pending.ram) == sum(kind == IN_RAM for kind in model.values())
