"""The state machine of a quorum queue, machine versions 5 to 7 (RabbitMQ 4.0 to 4.2): what they do otherwise than 3.

Source: docs/format/rabbitmq-quorum.md 10.2 and 10.3. Leaves to `checkout` and `consumers` how consumers come and go.
"""

from __future__ import annotations

from storage_core.rabbitmq.quorum.machine.machine import Machine
from storage_core.rabbitmq.quorum.machine.map_order import key_order
from storage_core.rabbitmq.quorum.machine.state import RETURNED, Consumer, ConsumerId, ConsumerKey, Outcome, Status


class MachineV5(Machine):
    """Consumers may be known by a number; one that is to give way to another is quiescing until it holds nothing."""

    knows_priorities = revives_quiescing = True
    active_statuses: tuple[Status, ...] = ("up", "quiescing")
    activates_after_each = False

    def key_of(self, name: ConsumerId) -> ConsumerKey | None:
        """The key of the consumer of that id, waiting ones too."""
        state = self.state
        if name in state.consumers:
            return name
        found = state.keys_where(lambda consumer: consumer.id == name)
        return next(iter([*found, *(key for key, consumer in state.waiting if consumer.id == name)]), None)

    def find(self, key: ConsumerKey) -> tuple[ConsumerKey, Consumer] | None:
        """The consumer that a command means, by its key or its id, and its key."""
        found = super().find(key)
        if found is None and isinstance(key, tuple):
            others = self.state.keys_where(lambda consumer: consumer.id == key)
            found = (others[0], self.state.consumers[others[0]]) if others else None
        return found

    def settle_consumer(self, key: ConsumerKey, consumer: Consumer) -> None:
        """Puts a changed consumer back; one that gives way and holds nothing waits."""
        done = consumer.once and consumer.credit == 0
        if done or consumer.status != "quiescing" or consumer.checked_out:
            super().settle_consumer(key, consumer)
            return
        consumer.status = "up"
        self.state.consumers.pop(key, None)
        self.wait(key, consumer)

    def completed(self) -> None:
        """The next of several single active consumers may be due."""
        self.activate()

    def give_back(self, now: int, key: ConsumerKey, ids: list[int], how: Outcome = RETURNED) -> None:
        """Returned messages: to the returns in the order of the command, or away when they were returned too often."""
        found = self.find(key)
        if found is None:
            return
        key, consumer = found
        for number in [number for number in dict.fromkeys(ids) if number in consumer.checked_out]:
            self.return_one(now, key, consumer, number, how)
        current = self.state.consumers.get(key)
        if current is not None:
            self.settle_consumer(key, current)
        self.came_back()
        self.serve(now)

    # -- single active consumers

    def activate(self) -> None:
        """Lets the first that waits in, when none is active or the active one has a lower priority."""
        state = self.state
        if not state.settings.single_active or not state.waiting or state.waiting[0][1].status != "up":
            return
        key, consumer = state.waiting[0]
        active = self.active()
        if active is None:
            del state.waiting[0]
            self.admit(key, consumer)
            return
        before = state.consumers[active]
        if consumer.priority <= before.priority:
            return
        if before.checked_out:
            before.status = "quiescing"
            return
        del state.waiting[0]
        state.consumers[key] = consumer
        self.line_up(key, consumer)
        # A queue of an older version may have both under one key; then none is left.
        del state.consumers[active]
        self.wait(active, before)

    def credited(self, key: ConsumerKey, consumer: Consumer) -> None:
        """A consumer that got credit, taken out of the line, waits where its credit puts it."""
        self.wait(key, consumer)

    def wait(self, key: ConsumerKey, consumer: Consumer) -> None:
        """Into the line of those that wait, in place of the entry of the same key."""
        waiting = self.state.waiting
        place = next((place for place, (other, _) in enumerate(waiting) if other == key), len(waiting))
        waiting[place : place + 1] = [(key, consumer)]
        self.sort_waiting()

    def sort_waiting(self) -> None:
        """Those that are up first, by priority, then by credit."""
        self.state.waiting.sort(
            key=lambda entry: (
                (0, -entry[1].priority, -entry[1].credit, *key_order(entry[0])) if entry[1].status == "up" else (1,)
            )
        )


class MachineV7(MachineV5):
    """The next single active consumer comes in after a return as well."""

    def came_back(self) -> None:
        """The next of several single active consumers may be due."""
        self.activate()
