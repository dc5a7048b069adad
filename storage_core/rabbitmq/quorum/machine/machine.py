"""The state machine of a quorum queue, machine versions 2 and 3: what each command does to the messages.

Source: docs/format/rabbitmq-quorum.md 10 and 10.1. Leaves to `commands` which commands there are, to `checkout` and
`consumers` the way of consumers in and out, to `machine_v5` and `machine_v8` what later versions do otherwise.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from storage_core.errors import FormatError
from storage_core.formats.rabbitmq.erlang.external_term import Opaque
from storage_core.rabbitmq.quorum.machine.map_order import as_in_map
from storage_core.rabbitmq.quorum.machine.message_facts import NORMAL_PRIORITY, MessageFacts
from storage_core.rabbitmq.quorum.machine.state import (
    FAILED,
    RETURNED,
    Consumer,
    ConsumerKey,
    Outcome,
    State,
    Status,
    settings_of,
)

AT_LEAST_ONCE = "at_least_once"


class Machine:
    """Applies commands to `state`. `size_of` says the bytes that count of a message that the state does not know."""

    knows_priorities = False
    """Whether the priority of a message, and the deliveries that failed, count."""
    active_statuses: tuple[Status, ...] = ("up",)
    """Of consumers that keep others of a queue with a single active one waiting."""
    counts_metadata = False
    """Whether the size of a message is that of its body and its metadata, not of its body alone."""
    drains_waiting = False
    """Whether a consumer that waits is drained, whatever its kind of credit."""
    revives_quiescing = False
    """Whether a consumer that was giving way takes messages again when its node is back."""
    activates_after_each = True
    """Whether the next one comes in after each consumer of a process that is gone, or after all of them."""

    def __init__(self, state: State, size_of: Callable[[int], int]) -> None:
        self.state = state
        self._size_of = size_of
        self._ready_bytes = 0
        self._count_bytes()

    def _count_bytes(self) -> None:
        """Bytes of the ready messages, which only a queue with a limit needs."""
        state = self.state
        if state.settings.max_bytes is not None:
            self._ready_bytes = sum(map(self.size, (*state.messages, *state.returns, *state.delayed.due)))

    def counted(self, facts: MessageFacts) -> int:
        """Bytes that count of a message."""
        return facts.size + facts.metadata if self.counts_metadata else facts.size

    def size(self, index: int) -> int:
        """Bytes that count of a message of the queue."""
        known = self.state.sizes.get(index)
        return self._size_of(index) if known is None else known

    @property
    def takes_runs(self) -> bool:
        """Whether messages only queue up at present: no consumer waits for one, none is dropped or expires."""
        state = self.state
        settings = state.settings
        return not (settings.limited or settings.message_ttl_ms is not None or state.service or state.expiries)

    def enqueue_run(self, publisher: Opaque, first: int, last: int, indexes: Iterable[int]) -> bool:
        """Enqueues numbered first to last of one publisher at once; False when the numbers are not the next ones."""
        state = self.state
        if state.publishers.get(publisher, 1) != first or not self.takes_runs:
            return False
        state.publishers[publisher] = last + 1
        state.messages.extend(indexes)
        return True

    def enqueue(self, now: int, index: int, publisher: Any, sequence: Any, facts: MessageFacts) -> None:
        """A message."""
        state = self.state
        if isinstance(publisher, Opaque) or isinstance(sequence, int):
            wanted = state.publishers.setdefault(publisher, 1)
            if sequence != wanted:
                return
            state.publishers[publisher] = wanted + 1
        given = [value for value in (facts.ttl, state.settings.message_ttl_ms) if value is not None]
        if given:
            state.expiries[index] = now + (min(given) or 1)
            state.sizes[index] = self.counted(facts)
        if facts.deliveries and self.knows_priorities:
            state.failures[index] = facts.deliveries
        state.messages.append(index, facts.priority if self.knows_priorities else NORMAL_PRIORITY)
        self.came(index)
        self.serve(now)

    def came(self, index: int) -> None:
        """A message that nobody holds any more, or yet."""
        if self.state.settings.max_bytes is not None:
            self._ready_bytes += self.size(index)

    def went(self, index: int) -> None:
        """A message that somebody holds, or nobody any more."""
        if self.state.settings.max_bytes is not None:
            self._ready_bytes -= self.size(index)

    def taken(self) -> int:
        """The next message, out of the queue."""
        state = self.state
        index = state.returns.popleft() if state.returns else state.messages.popleft()
        self.went(index)
        return index

    @property
    def ready(self) -> int:
        """Messages that nobody holds."""
        return len(self.state.messages) + len(self.state.returns)

    def expire(self, now: int) -> bool:
        """Drops expired messages from the head; whether there were any."""
        state = self.state
        dropped = False
        while self.ready and state.expiries:
            head = state.returns[0] if state.returns else state.messages.head
            expiry = state.expiries.get(head)
            if expiry is None or now < expiry:
                break
            self.dead_letter(self.taken(), True)
            dropped = True
        return dropped

    def dead_letter(self, index: int, kept: bool) -> None:
        """A message that leaves: held for the worker where dead lettering is at least once, and it is `kept` then."""
        state = self.state
        if state.settings.dead_letters == AT_LEAST_ONCE and kept:
            state.sizes[index] = self.size(index)
            state.discards.append(index)
        else:
            state.forget(index)

    def serve(self, now: int) -> None:
        """Hands messages to consumers with credit, drops what is expired or too much, feeds the worker."""
        while self.deliver_one(now):
            pass
        self._feed_worker()
        self.drop_excess()

    def deliver_one(self, now: int) -> bool:
        """Gives the next message to the next consumer; False when there is no message or nobody to take it."""
        state = self.state
        self.expire(now)
        while state.service:
            priority = max(state.service)
            queue = state.service[priority]
            key = queue[0]
            consumer = state.consumers.get(key)
            if consumer is not None and not self.ready:
                return False
            queue.popleft()
            if not queue:
                del state.service[priority]
            if consumer is None or consumer.credit == 0 or consumer.status != "up":
                continue
            consumer.hold(self.taken(), now)
            self.settle_consumer(key, consumer)
            return True
        return False

    def settle_consumer(self, key: ConsumerKey, consumer: Consumer) -> None:
        """Puts a changed consumer back: into the line when it has credit, out of the queue when it is done."""
        state = self.state
        if consumer.once and consumer.credit == 0:
            if consumer.checked_out:
                state.consumers[key] = consumer
            else:
                state.consumers.pop(key, None)
            return
        state.consumers[key] = consumer
        self.line_up(key, consumer)

    def line_up(self, key: ConsumerKey, consumer: Consumer) -> None:
        """Into the line of those that want messages, once."""
        if consumer.credit > 0 and consumer.status == "up":
            service = self.state.service
            if not any(key in queue for queue in service.values()):
                service.setdefault(consumer.priority, deque()).append(key)

    def drop_excess(self) -> None:
        """Drops messages at the head while there are too many, unless publishers are refused instead."""
        settings = self.state.settings
        if not settings.limited or settings.overflow != "drop_head":
            return
        while self.ready and self._over_limit():
            self.dead_letter(self.taken(), False)

    def _over_limit(self) -> bool:
        state = self.state
        held = [*state.discards, *(state.worker.checked_out.values() if state.worker else ())]
        longest, most = state.settings.max_length, state.settings.max_bytes
        if longest is not None and self.ready + len(state.delayed) + len(held) > longest:
            return True
        return most is not None and self._ready_bytes + sum(map(self.size, held)) > most

    def _feed_worker(self) -> None:
        state = self.state
        worker = state.worker
        if worker is None or state.settings.dead_letters != AT_LEAST_ONCE:
            return
        while state.discards and len(worker.checked_out) < worker.prefetch:
            worker.checked_out[worker.next_id] = state.discards.popleft()
            worker.next_id += 1

    def find(self, key: ConsumerKey) -> tuple[ConsumerKey, Consumer] | None:
        """The consumer that a command means, and its key."""
        consumer = self.state.consumers.get(key)
        return None if consumer is None else (key, consumer)

    def complete(self, key: ConsumerKey, consumer: Consumer, ids: list[int]) -> list[int]:
        """Takes message ids from a consumer, which gets its credit back. The messages, in the order of the ids."""
        found = [consumer.take(number) for number in ids if number in consumer.checked_out]
        if found or len(ids) != 1:
            give_credit(consumer, len(found))
            self.settle_consumer(key, consumer)
        return found

    def completed(self) -> None:
        """What follows where messages of a consumer left: nothing."""

    def came_back(self) -> None:
        """What follows where messages of a consumer went back: nothing."""

    def settle(self, now: int, key: ConsumerKey, ids: list[int]) -> None:
        """Acknowledged messages leave."""
        found = self.find(key)
        if found is None:
            return
        for index in self.complete(*found, ids):
            self.state.forget(index)
        self.completed()
        self.serve(now)

    def discard(self, now: int, key: ConsumerKey, ids: list[int], how: Outcome = FAILED) -> None:
        """Rejected messages leave, for the dead letters."""
        found = self.find(key)
        if found is None:
            return
        for index in self.complete(*found, ids):
            if self.knows_priorities:
                self.state.counts[index] = self.state.counts.get(index, 0) + 1
            self.note(index, how)
            self.dead_letter(index, True)
        self.completed()
        self.serve(now)

    def give_back(self, now: int, key: ConsumerKey, ids: list[int], how: Outcome = RETURNED) -> None:
        """Returned messages: to the returns in the order of a map, or away when they were delivered too often."""
        consumer = self.state.consumers.get(key)
        if consumer is None:
            return
        known = as_in_map([number for number in dict.fromkeys(ids) if number in consumer.checked_out])
        for number in known:
            self.return_one(now, key, consumer, number, how)
        current = self.state.consumers.get(key)
        if current is not None:
            if not self.state.credit_by_message:
                give_credit(current, len(known))
            self.settle_consumer(key, current)
        self.serve(now)

    def return_one(self, now: int, key: ConsumerKey, consumer: Consumer, number: int, how: Outcome) -> None:
        """One message of a consumer goes back, or, where that happened too often, leaves."""
        del now
        state = self.state
        index = consumer.checked_out[number]
        count = state.counts.get(index, 0) + 1
        self.note(index, how)
        state.sizes[index], state.counts[index] = self.size(index), count
        limit = state.settings.delivery_limit
        if limit is not None and count > limit:
            self.complete(key, consumer, [number])
            self.dead_letter(index, True)
            return
        consumer.take(number)
        if state.credit_by_message:
            give_credit(consumer, 1)
        state.returns.append(index)
        self.came(index)

    def note(self, index: int, how: Outcome) -> None:
        """What a message has to tell of its way back, from version 5 on."""
        state = self.state
        if how.failed and self.knows_priorities:
            state.failures[index] = state.failures.get(index, 0) + 1
        if how.annotations:
            state.annotations[index] = {**state.annotations.get(index, {}), **how.annotations}

    def requeue(self, now: int, index: int, key: ConsumerKey, number: int, header: Any) -> None:
        """A returned message that was written again: it goes to the end of the queue under its new index."""
        state = self.state
        consumer = state.consumers.get(key)
        if consumer is None or number not in consumer.checked_out:
            return
        state.forget(consumer.take(number))
        state.learn(index, header)
        state.counts[index] = state.counts.get(index, 0) + 1
        give_credit(consumer, 1)
        state.messages.append(index)
        self.came(index)
        self.settle_consumer(key, consumer)
        self.came_back()
        self.serve(now)

    def purge(self) -> None:
        """All ready messages leave; what consumers hold stays."""
        state = self.state
        for index in (*state.messages, *state.returns) if state.sizes or state.counts or state.expiries else ():
            state.forget(index)
        state.messages.clear()
        state.returns.clear()
        self._ready_bytes = 0
        self.drop_excess()

    def configure(self, now: int, config: Any) -> None:
        """The arguments of the queue. FormatError."""
        if not isinstance(config, dict):
            raise FormatError(0, "a configuration that is no map")
        state = self.state
        old, state.settings = state.settings, settings_of(config, state.version)
        if old.dead_letters != state.settings.dead_letters and AT_LEAST_ONCE in (
            old.dead_letters, state.settings.dead_letters,
        ):  # fmt: skip
            for index in (*state.discards, *(state.worker.checked_out.values() if state.worker else ())):
                state.forget(index)
            state.discards.clear()
            state.worker = None
        self._count_bytes()
        self.serve(now)

    def timeout_of(self, meta: Any) -> int | None:
        """Within how many ms a consumer must settle a message, by the meta map of its checkout: there is no limit."""
        del meta
        return None

    # -- single active consumers

    def active(self) -> ConsumerKey | None:
        """The one that gets messages."""
        return next(iter(self.state.keys_where(lambda consumer: consumer.status in self.active_statuses)), None)

    def activate(self) -> None:
        """Lets the next waiting consumer in, when none is active."""
        state = self.state
        if not state.settings.single_active or self.active() is not None:
            return
        key, waiting = next(((key, other) for key, other in state.waiting if other.status == "up"), (None, None))
        if key is None or waiting is None:
            return
        # Of several entries of its key the first one goes, whichever that is, and its own may stay.
        state.take_waiting(key)
        self.admit(key, replace(waiting, checked_out=dict(waiting.checked_out)))

    def admit(self, key: ConsumerKey, consumer: Consumer) -> None:
        """A consumer that waited; one that still holds messages under its key goes on with its terms."""
        existing = self.state.consumers.get(key)
        if existing is not None:
            existing.take_over(consumer)
            existing.timeout = consumer.timeout
        self.state.consumers[key] = existing or consumer
        self.line_up(key, self.state.consumers[key])

    def wait(self, key: ConsumerKey, consumer: Consumer) -> None:
        """Into the line of those that wait, as the last one."""
        self.state.waiting.append((key, consumer))

    def credited(self, key: ConsumerKey, consumer: Consumer) -> None:
        """A consumer that got credit, taken out of the line, waits as the first one again."""
        self.state.waiting.insert(0, (key, consumer))

    def sort_waiting(self) -> None:
        """Brings those that wait into their order: as they came."""


def give_credit(consumer: Consumer, count: int) -> None:
    """Credit for messages that a consumer no longer holds, where it comes back by itself."""
    if not consumer.once and consumer.credit_mode != "credited":
        consumer.credit += count
        if consumer.most_credit:
            consumer.credit = min(consumer.credit, consumer.most_credit)
