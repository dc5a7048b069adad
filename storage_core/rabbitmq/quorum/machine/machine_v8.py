"""The state machine of a quorum queue, machine version 8 (RabbitMQ 4.3): its differences from version 7.

Source: docs/format/rabbitmq-quorum.md 10.4. Handling consumers that cannot be reached or are late belongs to `absence`.
"""

from __future__ import annotations

from typing import Any

from storage_core.rabbitmq.quorum.machine.machine import give_credit
from storage_core.rabbitmq.quorum.machine.machine_v5 import MachineV7
from storage_core.rabbitmq.quorum.machine.priorities import Priorities
from storage_core.rabbitmq.quorum.machine.state import (
    ACKNOWLEDGED_WITHIN,
    FAILED,
    RETURNED,
    Consumer,
    ConsumerKey,
    Outcome,
)

SUSPECTED, LATE = "suspected_down", "timeout"
DELIVERY_TIME, DEFERRAL_TOKEN = b"x-opt-delivery-time", b"x-opt-deferral-token"
_FAILED, _NOT_FAILED = ("all", "failed"), ("all", "returned")
"""The values of a queue argument that delay a message after a failed delivery, and after one that did not fail."""


class MachineV8(MachineV7):
    """Delivers strictly by priority; only failed deliveries count against the limit; returns may be delayed."""

    active_statuses = ("up", "quiescing", (SUSPECTED, "up"), (SUSPECTED, "quiescing"))
    counts_metadata = drains_waiting = True
    revives_quiescing = False

    def timeout_of(self, meta: Any) -> int:
        """The ms within which a consumer must settle a message, from the meta map of its checkout."""
        timeout = meta.get("timeout") if isinstance(meta, dict) else None
        return timeout if isinstance(timeout, int) else ACKNOWLEDGED_WITHIN

    # -- expiry

    def expire(self, now: int) -> bool:
        """Drops expired messages at the heads of all priorities if the next one is expired. Returns whether it was."""
        state = self.state
        if not state.expiries or not self.ready:
            return False
        if not self._is_expired(state.returns[0] if state.returns else state.messages.head, now):
            return False
        self.expire_heads(now)
        return True

    def expire_heads(self, now: int) -> None:
        """Drops expired messages at the heads of the returns and of all priorities."""
        state = self.state
        while state.returns and self._is_expired(state.returns[0], now):
            self.dead_letter(self.taken(), True)
        if isinstance(state.messages, Priorities):
            for index in state.messages.take_heads(lambda head: self._is_expired(head, now)):
                self.went(index)
                self.dead_letter(index, True)

    def _is_expired(self, index: int, now: int) -> bool:
        expiry = self.state.expiries.get(index)
        return expiry is not None and now >= expiry

    # -- what consumers answer

    def complete(self, key: ConsumerKey, consumer: Consumer, ids: list[int]) -> list[int]:
        """Takes message ids from a consumer, which gets its credit back. Returns the messages, in the ids' order."""
        found = [consumer.take(number) for number in ids if number in consumer.checked_out]
        give_credit(consumer, len(found))
        self.settle_consumer(key, consumer)
        return found

    def settle(self, now: int, key: ConsumerKey, ids: list[int]) -> None:
        """Removes acknowledged messages."""
        if self._is_from_active(now, key, ids):
            super().settle(now, key, ids)

    def discard(self, now: int, key: ConsumerKey, ids: list[int], how: Outcome = FAILED) -> None:
        """Dead-letters rejected messages."""
        if self._is_from_active(now, key, ids):
            super().discard(now, key, ids, how)

    def give_back(self, now: int, key: ConsumerKey, ids: list[int], how: Outcome = RETURNED) -> None:
        """Moves each returned message to the returns or to the delayed messages, or removes it."""
        found = self.find(key) if self._is_from_active(now, key, ids) else None
        if found is None:
            return
        key, consumer = found
        for number in [number for number in dict.fromkeys(ids) if number in consumer.checked_out]:
            self.return_one(now, key, consumer, number, how)
        self.came_back()
        self.serve(now)

    def _is_from_active(self, now: int, key: ConsumerKey, ids: list[int]) -> bool:
        """Whether the answer is from a consumer that is not waiting. One that was late with these messages no longer
        is; if it waits, the messages no longer belong to it.
        """
        found = self.find(key)
        if found is not None:
            _answer(found[1], ids)
            return True
        if self.state.settings.single_active:
            waiting = self._find_waiting(key)
            if waiting is not None and waiting[1].away == LATE:
                _answer(waiting[1], ids)
                self.wait(*waiting)
                if not waiting[1].overdue:
                    self.activate()
                    self.serve(now)
        return False

    def _find_waiting(self, key: ConsumerKey) -> tuple[ConsumerKey, Consumer] | None:
        waiting = self.state.waiting
        by_key = [entry for entry in waiting if entry[0] == key]
        return next(iter([*by_key, *(entry for entry in waiting if entry[1].id == key)]), None)

    def return_one(self, now: int, key: ConsumerKey, consumer: Consumer, number: int, how: Outcome) -> None:
        """Returns one message of a consumer, or removes it if its delivery failed too often."""
        state = self.state
        index = consumer.checked_out[number]
        state.sizes[index] = self.size(index)
        state.counts[index] = state.counts.get(index, 0) + 1
        self.note(index, how)
        limit = state.settings.delivery_limit
        if limit is not None and state.failures.get(index, 0) > limit:
            self.dead_letter(index, True)
            self.complete(key, consumer, [number])
            return
        consumer.take(number)
        give_credit(consumer, 1)
        due = self._due(now, index, how)
        if due is None:
            state.returns.append(index)
        else:
            token = how.annotations.get(DEFERRAL_TOKEN)
            state.delayed.put(index, due, token if isinstance(token, bytes) else None)
        self.settle_consumer(key, consumer)
        self.came(index)

    def _due(self, now: int, index: int, how: Outcome) -> int | None:
        """When a returned message is due again; None for at once."""
        wanted = how.annotations.get(DELIVERY_TIME)
        if isinstance(wanted, int) and wanted > now:
            return wanted
        retry = self.state.settings.retry
        if retry is None or retry[0] not in (_FAILED if how.failed else _NOT_FAILED):
            return None
        _, least, most = retry
        return now + min(least * max(1, self.state.failures.get(index, 1)), most)

    # -- delayed messages

    def purge(self) -> None:
        """Removes all messages except those that consumers hold."""
        state = self.state
        worker = state.worker
        for index in (*state.delayed.due, *state.discards, *(worker.checked_out.values() if worker else ())):
            state.forget(index)
        state.delayed.clear()
        state.discards.clear()
        if worker is not None:
            worker.checked_out.clear()
        super().purge()

    def wake(self, now: int) -> None:
        """Handles the timer of the queue: due messages become ready, expired ones are removed."""
        self.state.returns.extend(self.state.delayed.take_due(now))
        self.expire_heads(now)
        self.serve(now)

    def retry(self, now: int, count: int | None) -> None:
        """Makes `count` delayed messages ready, or all of them if it is None."""
        delayed = self.state.delayed
        self.state.returns.extend(delayed.take_first(len(delayed) if count is None else count))
        if count is None:
            delayed.clear()
        self.serve(now)

    def assign(self, now: int, key: ConsumerKey, tokens: list[bytes]) -> None:
        """Hands a consumer the messages that it requested, which were deferred under these tokens."""
        state = self.state
        consumer = state.consumers.get(key)
        if consumer is None or consumer.status != "up":
            return
        found = state.delayed.find(tokens)
        if len(found) > consumer.credit:
            return
        state.delayed.forget(tokens)
        for index in found:
            self.went(index)
            consumer.hold(index, now)
        if found:
            self.settle_consumer(key, consumer)


def _answer(consumer: Consumer, ids: list[int]) -> None:
    """Records that a consumer is no longer late with these messages."""
    if consumer.away == LATE:
        consumer.overdue = [number for number in consumer.overdue if number not in ids]
        if not consumer.overdue:
            consumer.status = consumer.status[1]
