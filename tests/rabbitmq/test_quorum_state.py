"""The state machine of quorum queues in isolation: waiting messages, held messages, and the effect of a start."""

from __future__ import annotations

from collections import deque

import pytest

from storage_core.formats.rabbitmq.erlang import external_term
from storage_core.rabbitmq.quorum.machine import dead_letters, map_order
from storage_core.rabbitmq.quorum.machine.consumers import restart
from storage_core.rabbitmq.quorum.machine.delayed import Delayed
from storage_core.rabbitmq.quorum.machine.lanes import Lanes
from storage_core.rabbitmq.quorum.machine.machine import AT_LEAST_ONCE
from storage_core.rabbitmq.quorum.machine.priorities import Priorities
from storage_core.rabbitmq.quorum.machine.state import FAILED, Consumer, DeadLetterWorker, Outcome, Settings, State
from storage_core.rabbitmq.quorum.replay import MACHINES


def test_the_lanes_of_version_5() -> None:
    """Two of three messages come from the high lane, the third is the older of the two heads."""
    lanes = Lanes([1, 2, 3, 9], [4, 5, 6, 7, 8])
    order = [*lanes]
    assert order == [4, 5, 1, 6, 7, 2, 8, 3, 9]
    heads = []
    while len(lanes):
        heads.append(lanes.head)
        assert lanes.popleft() == heads[-1]
    assert (heads, lanes.turn) == (order, 0)
    assert [*Lanes([7], [4, 5, 6])] == [4, 5, 6, 7]


def test_the_priorities_of_version_8() -> None:
    """The highest priority first; expired messages are removed from the head of each."""
    queue = Priorities({4: [1, 2], 0: [3]})
    for index, priority in ((4, 255), (5, 31), (6, -1), (7, 4)):
        queue.append(index, priority)
    assert ([*queue], len(queue), queue.head) == ([4, 5, 1, 2, 7, 3, 6], 7, 4)
    assert queue.take_heads(lambda index: index in {4, 1, 7, 3, 6}) == [4, 1, 3, 6]
    assert [queue.popleft() for _ in range(3)] == [5, 2, 7]
    assert not len(queue)


def test_messages_that_wait_for_their_time() -> None:
    delayed = Delayed()
    for index, due, token in ((1, 30, None), (2, 20, b"a"), (3, 30, b"b"), (4, 50, b"a")):
        delayed.put(index, due, token)
    assert delayed.find([b"b", b"a", b"none", b"b"]) == [3, 4]
    assert delayed.take_due(19) == []
    assert delayed.take_due(30) == [2, 1, 3]
    assert delayed.deferred == {b"a": (50, 4)}
    delayed.put(5, 60)
    delayed.forget([b"a"])
    assert (delayed.due, delayed.deferred, delayed.first) == ({5: 60}, {}, 5)
    assert (delayed.take_first(3), len(delayed), delayed.first) == ([5], 0, None)


def test_of_equal_times_the_one_that_came_first_is_the_next() -> None:
    """Only the first: after it the raft index decides. A message that is put back waits again."""
    delayed = Delayed()
    for index in (9, 8, 7, 6):
        delayed.put(index, 30)
    assert delayed.take_due(30) == [9, 6, 7, 8]
    for index in (9, 8):
        delayed.put(index, 30)
    assert (delayed.take_first(1), delayed.first, delayed.take_due(40)) == ([8], 9, [9])


def test_a_state_under_later_rules() -> None:
    """A returned message keeps its counts; a message that waits to be delivered has those that it arrived with."""
    process = external_term.Opaque(b"p")
    state = State(counts={1: 2, 2: 1, 3: 4}, returns=deque([1]), messages=Lanes([3, 4], turn=2))
    state.consumers[b"t", process] = Consumer((b"t", process), 3, "simple_prefetch", False, 0, prefetch=5)
    state.consumers[b"t", process].checked_out[0] = 2
    state.upgraded(3, 1000)
    assert (state.consumers[b"t", process].most_credit, state.credit_by_message) == (5, True)
    state.upgraded(5, 1000)
    assert isinstance(state.messages, Lanes)
    assert (state.counts, state.failures, state.messages.turn) == ({1: 2, 2: 1}, {1: 2, 2: 1, 3: 4}, 0)
    assert state.deliveries == state.acquired == {1: 2, 2: 1, 3: 4}
    state.failures[2] = 3
    state.messages.append(5, 200)
    consumer = state.consumers[b"t", process]
    consumer.status = "suspected_down"
    state.upgraded(8, 1000)
    assert isinstance(state.messages, Priorities)
    assert ([*state.messages], state.messages.queues.keys()) == ([5, 3, 4], {4, 9})
    assert (consumer.status, consumer.away) == (("suspected_down", "up"), "suspected_down")
    assert (consumer.timeout, consumer.deadlines) == (1_800_000, {0: 1_801_000})
    assert (state.deliveries, state.acquired) == ({1: 2, 2: 3, 3: 4}, {1: 2, 2: 1, 3: 4})


@pytest.mark.parametrize(
    ("version", "counts", "failures", "noted"),
    [(2, {2: 3}, {}, {}), (5, {1: 1, 2: 3}, {1: 1}, {1: {b"x-opt-a": 1}}), (8, {1: 1}, {1: 1}, {1: {b"x-opt-a": 1}})],
)
def test_what_is_held_for_the_dead_letter_worker(
    version: int, counts: dict[int, int], failures: dict[int, int], noted: dict[int, object]
) -> None:
    """A rejection counts from version 5 on, and a return beyond the delivery limit in all versions but 8."""
    name = b"t", external_term.Opaque(b"p")
    state = State().upgraded(version, 0)
    state.settings = Settings(delivery_limit=2, dead_letters=AT_LEAST_ONCE, overflow="reject_publish")
    consumer = state.consumers[name] = Consumer(name, 0, "simple_prefetch", False, 0)
    consumer.checked_out.update({0: 1, 1: 2})
    state.counts[2] = 2
    machine = MACHINES[version](state, lambda _: 10)
    machine.discard(0, name, [0], Outcome(True, {b"x-opt-a": 1}) if version > 3 else FAILED)
    machine.give_back(0, name, [1])
    assert [*state.discards] == ([1] if version == 8 else [1, 2])
    held = set(state.discards)
    for found, expected in ((state.counts, counts), (state.failures, failures), (state.annotations, noted)):
        assert {index: value for index, value in found.items() if index in held} == expected
    dead_letters.apply(machine, 0, ("checkout", name[1], 1))
    assert state.worker == DeadLetterWorker(1, 1, {0: 1})
    dead_letters.apply(machine, 0, ("settle", [0]))
    assert set(state.held()) == {2}
    assert 1 not in state.counts.keys() | state.failures.keys() | state.annotations.keys()


@pytest.mark.parametrize(
    ("version", "watched", "counts"), [(5, [b"a@h"], {1: 1, 2: 1, 3: 1}), (5, [], {1: 1}), (8, [], {1: 2, 2: 1, 3: 1})]
)
def test_a_consumer_that_was_giving_way(version: int, watched: list[bytes], counts: dict[int, int]) -> None:
    """In version 5 a start makes it take messages again before it is removed. In 8 it is back until the next start."""
    pid = external_term.Opaque(b"Xw\x03a@h" + bytes(12))
    state = State(messages=Lanes([2, 3, 4])).upgraded(version, 0)
    state.settings = Settings(single_active=True)
    consumer = state.consumers[b"t", pid] = Consumer((b"t", pid), 2, "simple_prefetch", False, 0, prefetch=3, next_id=1)
    consumer.status, consumer.checked_out[0] = "quiescing", 1
    restart(MACHINES[version](state, lambda _: 10), 0, watched)
    assert (state.consumers, state.waiting, state.counts) == ({}, [], counts)
    assert ([*state.returns], [*state.messages]) == ([*counts], [each for each in (2, 3, 4) if each not in counts])


def test_the_order_of_a_large_map() -> None:
    """Fact 10 of the format's page: the order of the fixture with 50 messages returned by one command."""
    assert map_order.as_in_map(range(50))[:9] == [16, 18, 5, 19, 42, 27, 49, 35, 10]
    assert map_order.as_in_map([3, 1, 2]) == [1, 2, 3]
