"""The state machine of a quorum queue, machine version 2: what each command does to the messages.

Source: docs/format/rabbitmq-quorum.md 10. Leaves to `replay` which commands there are, to `consumers` the way of
consumers in and out.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from storage_core.errors import FormatError
from storage_core.formats.rabbitmq.erlang.external_term import Opaque
from storage_core.rabbitmq.quorum.machine_state import Consumer, ConsumerId, DeadLetterWorker, State, settings_of
from storage_core.rabbitmq.quorum.map_order import as_in_map

AT_LEAST_ONCE = "at_least_once"


class Machine:
    """Applies commands to `state`. `size_of` says the body size of a message that the state does not know."""

    def __init__(self, state: State, size_of: Callable[[int], int]) -> None:
        self.state = state
        self._size_of = size_of
        self._ready_bytes = 0
        self._count_bytes()

    def _count_bytes(self) -> None:
        """Bytes of the ready messages, which only a queue with a limit needs."""
        state = self.state
        if state.settings.max_bytes is not None:
            self._ready_bytes = sum(map(self.size, state.messages)) + sum(map(self.size, state.returns))

    def size(self, index: int) -> int:
        """Body size of a message."""
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

    def enqueue(self, now: int, index: int, publisher: Any, sequence: Any, ttl: int | None, size: int) -> None:
        """A message; `ttl` is its own, in ms."""
        state = self.state
        if isinstance(publisher, Opaque) or isinstance(sequence, int):
            wanted = state.publishers.setdefault(publisher, 1)
            if sequence != wanted:
                return
            state.publishers[publisher] = wanted + 1
        given = [value for value in (ttl, state.settings.message_ttl_ms) if value is not None]
        if given:
            state.expiries[index] = now + (min(given) or 1)
            state.sizes[index] = size
        self._append(index, state.messages)
        self.serve(now)

    def _append(self, index: int, target: deque[int]) -> None:
        target.append(index)
        if self.state.settings.max_bytes is not None:
            self._ready_bytes += self.size(index)

    def _taken(self) -> int:
        """The next message, out of the queue."""
        state = self.state
        index = state.returns.popleft() if state.returns else state.messages.popleft()
        if state.settings.max_bytes is not None:
            self._ready_bytes -= self.size(index)
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
            head = state.returns[0] if state.returns else state.messages[0]
            expiry = state.expiries.get(head)
            if expiry is None or now < expiry:
                break
            self._dead_letter(self._taken(), True)
            dropped = True
        return dropped

    def _dead_letter(self, index: int, kept: bool) -> None:
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
            name = queue[0]
            consumer = state.consumers.get(name)
            if consumer is not None and not self.ready:
                return False
            queue.popleft()
            if not queue:
                del state.service[priority]
            if consumer is None or consumer.credit == 0 or consumer.status in {"cancelled", "suspected_down"}:
                continue
            consumer.checked_out[consumer.next_id] = self._taken()
            consumer.next_id += 1
            consumer.credit -= 1
            consumer.delivery_count += 1
            self.settle_consumer(name, consumer)
            return True
        return False

    def settle_consumer(self, name: ConsumerId, consumer: Consumer) -> None:
        """Puts a changed consumer back: into the line when it has credit, out of the queue when it is done."""
        state = self.state
        if consumer.once and consumer.credit == 0:
            if consumer.checked_out:
                state.consumers[name] = consumer
            else:
                state.consumers.pop(name, None)
            return
        state.consumers[name] = consumer
        self.line_up(name, consumer)

    def line_up(self, name: ConsumerId, consumer: Consumer) -> None:
        """Into the line of those that want messages, once."""
        if consumer.credit > 0 and consumer.status == "up":
            service = self.state.service
            if not any(name in queue for queue in service.values()):
                service.setdefault(consumer.priority, deque()).append(name)

    def drop_excess(self) -> None:
        """Drops messages at the head while there are too many, unless publishers are refused instead."""
        settings = self.state.settings
        if not settings.limited or settings.overflow != "drop_head":
            return
        while self.ready and self._over_limit():
            self._dead_letter(self._taken(), False)

    def _over_limit(self) -> bool:
        state = self.state
        held = [*state.discards, *(state.worker.checked_out.values() if state.worker else ())]
        longest, most = state.settings.max_length, state.settings.max_bytes
        if longest is not None and self.ready + len(held) > longest:
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

    def complete(self, name: ConsumerId, consumer: Consumer, ids: list[int]) -> list[int]:
        """Takes message ids from a consumer, which gets its credit back. The messages, in the order of the ids."""
        found = [consumer.checked_out.pop(number) for number in ids if number in consumer.checked_out]
        if found or len(ids) != 1:
            give_credit(consumer, len(found))
            self.settle_consumer(name, consumer)
        return found

    def settle(self, now: int, name: ConsumerId, ids: list[int]) -> None:
        """Acknowledged messages leave."""
        consumer = self.state.consumers.get(name)
        if consumer is None:
            return
        for index in self.complete(name, consumer, ids):
            self.state.forget(index)
        self.serve(now)

    def discard(self, now: int, name: ConsumerId, ids: list[int]) -> None:
        """Rejected messages leave, for the dead letters."""
        consumer = self.state.consumers.get(name)
        if consumer is None:
            return
        for index in self.complete(name, consumer, ids):
            self._dead_letter(index, True)
        self.serve(now)

    def give_back(self, now: int, name: ConsumerId, ids: list[int]) -> None:
        """Returned messages: to the returns in the order of a map, or away when they were delivered too often."""
        consumer = self.state.consumers.get(name)
        if consumer is None:
            return
        known = as_in_map([number for number in dict.fromkeys(ids) if number in consumer.checked_out])
        for number in known:
            self.return_one(name, consumer, number)
        current = self.state.consumers.get(name)
        if current is not None:
            give_credit(current, len(known))
            self.settle_consumer(name, current)
        self.serve(now)

    def return_one(self, name: ConsumerId, consumer: Consumer, number: int) -> None:
        """One message of a consumer goes back."""
        state = self.state
        index = consumer.checked_out[number]
        count = state.counts.get(index, 0) + 1
        state.sizes[index] = self.size(index)
        limit = state.settings.delivery_limit
        if limit is not None and count > limit:
            self.complete(name, consumer, [number])
            self._dead_letter(index, True)
            return
        state.counts[index] = count
        del consumer.checked_out[number]
        self._append(index, state.returns)

    def requeue(self, now: int, index: int, name: ConsumerId, number: int, header: Any) -> None:
        """A returned message that was written again: it goes to the end of the queue under its new index."""
        state = self.state
        consumer = state.consumers.get(name)
        if consumer is None or number not in consumer.checked_out:
            return
        state.forget(consumer.checked_out.pop(number))
        state.learn(index, header)
        state.counts[index] = state.counts.get(index, 0) + 1
        give_credit(consumer, 1)
        self._append(index, state.messages)
        self.settle_consumer(name, consumer)
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
        old, state.settings = state.settings, settings_of(config)
        if old.dead_letters != state.settings.dead_letters and AT_LEAST_ONCE in (
            old.dead_letters, state.settings.dead_letters,
        ):  # fmt: skip
            for index in (*state.discards, *(state.worker.checked_out.values() if state.worker else ())):
                state.forget(index)
            state.discards.clear()
            state.worker = None
        self._count_bytes()
        self.serve(now)

    def dead_letter_command(self, now: int, command: Any) -> None:
        """What the worker of at-least-once dead lettering says. FormatError."""
        state = self.state
        if state.settings.dead_letters == AT_LEAST_ONCE and isinstance(command, tuple):
            worker = state.worker
            if command[0] == "settle" and worker is not None:
                for number in command[1]:
                    if number in worker.checked_out:
                        state.forget(worker.checked_out.pop(number))
            elif command[0] == "checkout":
                if worker is not None:
                    state.discards.extendleft(reversed([worker.checked_out[key] for key in sorted(worker.checked_out)]))
                state.worker = DeadLetterWorker(int(command[2]))
        self.serve(now)


def give_credit(consumer: Consumer, count: int) -> None:
    """Credit for messages that a consumer no longer holds, where it comes back by itself."""
    if not consumer.once and consumer.credit_mode != "credited":
        consumer.credit += count
