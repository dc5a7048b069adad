"""The state machine of a quorum queue, machine versions 4 to 7 (RabbitMQ 4.0 to 4.2): their differences from version 3.

Source: docs/format/rabbitmq-quorum.md 10.2 and 10.3. How consumers come and go belongs to `checkout` and `consumers`.
"""

from __future__ import annotations

from storage_core.rabbitmq.quorum.machine.machine import Machine
from storage_core.rabbitmq.quorum.machine.map_order import key_order
from storage_core.rabbitmq.quorum.machine.state import RETURNED, Consumer, ConsumerId, ConsumerKey, Outcome, Status


class MachineV5(Machine):
    """Consumers may be identified by a number; one that must give way is quiescing until it holds nothing."""

    knows_priorities = revives_quiescing = True
    active_statuses: tuple[Status, ...] = ("up", "quiescing")
    activates_after_each = False

    def key_of(self, name: ConsumerId) -> ConsumerKey | None:
        """The key of the consumer with that id, which may be a waiting one."""
        state = self.state
        if name in state.consumers:
            return name
        found = state.keys_where(lambda consumer: consumer.id == name)
        return next(iter([*found, *(key for key, consumer in state.waiting if consumer.id == name)]), None)

    def find(self, key: ConsumerKey) -> tuple[ConsumerKey, Consumer] | None:
        """The consumer that a command refers to by key or by id, and its key."""
        found = super().find(key)
        if found is None and isinstance(key, tuple):
            others = self.state.keys_where(lambda consumer: consumer.id == key)
            found = (others[0], self.state.consumers[others[0]]) if others else None
        return found

    def settle_consumer(self, key: ConsumerKey, consumer: Consumer) -> None:
        """Stores a changed consumer; one that gives way and holds nothing becomes a waiting one."""
        done = consumer.once and consumer.credit == 0
        if done or consumer.status != "quiescing" or consumer.checked_out:
            super().settle_consumer(key, consumer)
            return
        consumer.status = "up"
        self.state.consumers.pop(key, None)
        self.wait(key, consumer)

    def completed(self) -> None:
        """Activates the next single active consumer if it is due."""
        self.activate()

    def give_back(self, now: int, key: ConsumerKey, ids: list[int], how: Outcome = RETURNED) -> None:
        """Adds returned messages to the returns in the order of the command; removes those returned too often."""
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
        """Activates the first waiting consumer if none is active or the active one has a lower priority."""
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
        # In a queue from an older version both may have the same key; then none is left.
        del state.consumers[active]
        self.wait(active, before)

    def credited(self, key: ConsumerKey, consumer: Consumer) -> None:
        """Puts a consumer that got credit, and was taken out of the line, back where its credit ranks it."""
        self.wait(key, consumer)

    def wait(self, key: ConsumerKey, consumer: Consumer) -> None:
        """Adds a consumer to the line of waiting consumers, in place of an entry with the same key."""
        waiting = self.state.waiting
        place = next((place for place, (other, _) in enumerate(waiting) if other == key), len(waiting))
        waiting[place : place + 1] = [(key, consumer)]
        self.sort_waiting()

    def sort_waiting(self) -> None:
        """Sorts the waiting consumers: those that are up come first, by priority, then by credit."""
        self.state.waiting.sort(
            key=lambda entry: (
                (0, -entry[1].priority, -entry[1].credit, *key_order(entry[0])) if entry[1].status == "up" else (1,)
            )
        )


class MachineV4(MachineV5):
    """A `discard` finds its consumer by key alone; one that `modify` makes does not."""

    def reject(self, now: int, key: ConsumerKey, ids: list[int]) -> None:
        """Applies a `discard`, unless it names the consumer by its id."""
        if key in self.state.consumers:
            self.discard(now, key, ids)


class MachineV7(MachineV5):
    """The next single active consumer can become active after a return as well."""

    def came_back(self) -> None:
        """Activates the next single active consumer if it is due."""
        self.activate()
