"""The state machine of a quorum queue, machine versions 2 and 3: what each command does to the messages.

Source: docs/format/rabbitmq-quorum.md 10 and 10.1. The list of commands belongs to `commands`, adding and removing
consumers to `checkout` and `consumers`, the differences of later versions to `machine_v5` and `machine_v8`.
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
    """Applies commands to `state`. `size_of` returns the counted bytes of a message if the state does not have them."""

    knows_priorities = False
    """Whether message priorities and failed deliveries count."""
    active_statuses: tuple[Status, ...] = ("up",)
    """Statuses of a consumer that keeps the others of a queue with a single active consumer waiting."""
    counts_metadata = False
    """Whether the size of a message includes its metadata as well as its body."""
    drains_waiting = False
    """Whether a waiting consumer is drained, whatever its credit mode."""
    revives_quiescing = False
    """Whether a consumer that was giving way receives messages again when its node is back."""
    activates_after_each = True
    """Whether the next consumer becomes active after each consumer of a lost process, or after all of them."""

    def __init__(self, state: State, size_of: Callable[[int], int]) -> None:
        self.state = state
        self._size_of = size_of
        self._ready_bytes = 0
        self._count_bytes()

    def _count_bytes(self) -> None:
        """Counts the bytes of the ready messages, which only a queue with a limit needs."""
        state = self.state
        if state.settings.max_bytes is not None:
            self._ready_bytes = sum(map(self.size, (*state.messages, *state.returns, *state.delayed.due)))

    def counted(self, facts: MessageFacts) -> int:
        """The counted bytes of a message."""
        return facts.size + facts.metadata if self.counts_metadata else facts.size

    def size(self, index: int) -> int:
        """The counted bytes of a message of the queue."""
        known = self.state.sizes.get(index)
        return self._size_of(index) if known is None else known

    @property
    def takes_runs(self) -> bool:
        """Whether messages currently only queue up: no consumer waits for one, none is dropped or expires."""
        state = self.state
        settings = state.settings
        return not (settings.limited or settings.message_ttl_ms is not None or state.service or state.expiries)

    def enqueue_run(self, publisher: Opaque, first: int, last: int, indexes: Iterable[int]) -> bool:
        """Applies enqueues `first` to `last` of one publisher at once; False unless they come next and `takes_runs`."""
        state = self.state
        if state.publishers.get(publisher, 1) != first or not self.takes_runs:
            return False
        state.publishers[publisher] = last + 1
        state.messages.extend(indexes)
        return True

    def enqueue(self, now: int, index: int, publisher: Any, sequence: Any, facts: MessageFacts) -> None:
        """Enqueues a message."""
        state = self.state
        if isinstance(publisher, Opaque) or isinstance(sequence, int):
            expected = state.publishers.setdefault(publisher, 1)
            if sequence != expected:
                return
            state.publishers[publisher] = expected + 1
        ttls = [value for value in (facts.ttl, state.settings.message_ttl_ms) if value is not None]
        if ttls:
            state.expiries[index] = now + (min(ttls) or 1)
            state.sizes[index] = self.counted(facts)
        if facts.deliveries and self.knows_priorities:
            state.failures[index] = facts.deliveries
        state.messages.append(index, facts.priority if self.knows_priorities else NORMAL_PRIORITY)
        self.came(index)
        self.serve(now)

    def came(self, index: int) -> None:
        """Counts the bytes of a message that no consumer holds, yet or any more."""
        if self.state.settings.max_bytes is not None:
            self._ready_bytes += self.size(index)

    def went(self, index: int) -> None:
        """Stops counting the bytes of a message that a consumer now holds, or that left the queue."""
        if self.state.settings.max_bytes is not None:
            self._ready_bytes -= self.size(index)

    def taken(self) -> int:
        """Removes and returns the next message."""
        state = self.state
        index = state.returns.popleft() if state.returns else state.messages.popleft()
        self.went(index)
        return index

    @property
    def ready(self) -> int:
        """Number of messages that no consumer holds."""
        return len(self.state.messages) + len(self.state.returns)

    def expire(self, now: int) -> bool:
        """Drops expired messages from the head. Returns whether there were any."""
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
        """Removes a message. If it is `kept` and dead lettering is at-least-once, it is held for the worker."""
        state = self.state
        if state.settings.dead_letters == AT_LEAST_ONCE and kept:
            state.sizes[index] = self.size(index)
            state.discards.append(index)
        else:
            state.forget(index)

    def serve(self, now: int) -> None:
        """Delivers messages to consumers with credit, drops expired and excess messages, and feeds the worker."""
        while self.deliver_one(now):
            pass
        self._feed_worker()
        self.drop_excess()

    def deliver_one(self, now: int) -> bool:
        """Delivers the next message to the next consumer; False if there is no message or no consumer for it."""
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
        """Stores a changed consumer: one with credit is lined up for messages, one that is done is removed."""
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
        """Adds a consumer with credit to the line of those that want messages, if it is not in it yet."""
        if consumer.credit > 0 and consumer.status == "up":
            service = self.state.service
            if not any(key in queue for queue in service.values()):
                service.setdefault(consumer.priority, deque()).append(key)

    def drop_excess(self) -> None:
        """Drops messages at the head while there are too many, unless publishers are rejected instead."""
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
        """The consumer that a command refers to, and its key."""
        consumer = self.state.consumers.get(key)
        return None if consumer is None else (key, consumer)

    def complete(self, key: ConsumerKey, consumer: Consumer, ids: list[int]) -> list[int]:
        """Takes message ids from a consumer, which gets its credit back. Returns the messages, in the ids' order."""
        found = [consumer.take(number) for number in ids if number in consumer.checked_out]
        if found or len(ids) != 1:
            give_credit(consumer, len(found))
            self.settle_consumer(key, consumer)
        return found

    def completed(self) -> None:
        """Called after messages of a consumer left; does nothing in these versions."""

    def came_back(self) -> None:
        """Called after messages of a consumer were returned; does nothing in these versions."""

    def settle(self, now: int, key: ConsumerKey, ids: list[int]) -> None:
        """Removes acknowledged messages."""
        found = self.find(key)
        if found is None:
            return
        for index in self.complete(*found, ids):
            self.state.forget(index)
        self.completed()
        self.serve(now)

    def reject(self, now: int, key: ConsumerKey, ids: list[int]) -> None:
        """Applies a `discard`."""
        self.discard(now, key, ids)

    def discard(self, now: int, key: ConsumerKey, ids: list[int], how: Outcome = FAILED) -> None:
        """Dead-letters rejected messages."""
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
        """Adds returned messages to the returns in the order of a map; removes those delivered too often."""
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
        """Returns one message of a consumer, or removes it if that happened too often."""
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
        """Records the failed delivery and the annotations of a returned message, from version 4 on."""
        state = self.state
        if how.failed and self.knows_priorities:
            state.failures[index] = state.failures.get(index, 0) + 1
        if how.annotations:
            state.annotations[index] = {**state.annotations.get(index, {}), **how.annotations}

    def requeue(self, now: int, index: int, key: ConsumerKey, number: int, header: Any) -> None:
        """Moves a returned message that was written again to the end of the queue, under its new index."""
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
        """Removes all ready messages; those that consumers hold stay."""
        state = self.state
        for index in (*state.messages, *state.returns) if state.sizes or state.counts or state.expiries else ():
            state.forget(index)
        state.messages.clear()
        state.returns.clear()
        self._ready_bytes = 0
        self.drop_excess()

    def configure(self, now: int, config: Any) -> None:
        """Sets the arguments of the queue. Raises FormatError."""
        if not isinstance(config, dict):
            raise FormatError(0, "a configuration that is not a map")
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
        """The ms within which a consumer must settle a message, from the meta map of its checkout: no limit here."""
        del meta
        return None

    # -- single active consumers

    def active(self) -> ConsumerKey | None:
        """The key of the consumer that gets messages."""
        return next(iter(self.state.keys_where(lambda consumer: consumer.status in self.active_statuses)), None)

    def activate(self) -> None:
        """Activates the next waiting consumer if none is active."""
        state = self.state
        if not state.settings.single_active or self.active() is not None:
            return
        key, waiting = next(((key, other) for key, other in state.waiting if other.status == "up"), (None, None))
        if key is None or waiting is None:
            return
        # Of several entries with its key, the first one is removed, even if that leaves its own entry in place.
        state.take_waiting(key)
        self.admit(key, replace(waiting, checked_out=dict(waiting.checked_out)))

    def admit(self, key: ConsumerKey, consumer: Consumer) -> None:
        """Admits a consumer that waited; one that still holds messages under its key continues with its terms."""
        existing = self.state.consumers.get(key)
        if existing is not None:
            existing.take_over(consumer)
            existing.timeout = consumer.timeout
        self.state.consumers[key] = existing or consumer
        self.line_up(key, self.state.consumers[key])

    def wait(self, key: ConsumerKey, consumer: Consumer) -> None:
        """Adds a consumer at the end of the line of waiting consumers."""
        self.state.waiting.append((key, consumer))

    def credited(self, key: ConsumerKey, consumer: Consumer) -> None:
        """Puts a consumer that got credit, and was taken out of the line, back as its first one."""
        self.state.waiting.insert(0, (key, consumer))

    def sort_waiting(self) -> None:
        """Sorts the waiting consumers: here they stay in order of arrival."""


def give_credit(consumer: Consumer, count: int) -> None:
    """Gives back credit for messages that a consumer no longer holds, if its credit renews automatically."""
    if not consumer.once and consumer.credit_mode != "credited":
        consumer.credit += count
        if consumer.most_credit:
            consumer.credit = min(consumer.credit, consumer.most_credit)
