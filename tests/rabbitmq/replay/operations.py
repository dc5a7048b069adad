"""The operations of a replay script, performed on its own paging queue. Source: tests/rabbitmq/replay/README.md
"Script".
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from storage_core.errors import MqStoreError
from storage_core.formats.layout import Mask
from storage_core.formats.rabbitmq import paths
from storage_core.formats.rabbitmq.message.message_template import MessageTemplate
from storage_core.formats.rabbitmq.paths import QueueName
from storage_core.rabbitmq.disk.recovery_terms import QueueTerms
from storage_core.rabbitmq.disk.settings import Settings
from storage_core.rabbitmq.index import message_run as status
from storage_core.rabbitmq.index.index_recovery import recover_dirty
from storage_core.rabbitmq.index.message_run import ROW, MessageRun, Rows, SequenceIds, object_array
from storage_core.rabbitmq.index.queue_index import QueueIndex
from storage_core.rabbitmq.message_store.message_store import MessageStore
from storage_core.rabbitmq.paging.paging_queue import PagingQueue, Taken
from storage_core.rabbitmq.paging.queue_state import QueueState

VHOST, QUEUE = b"oracle", b"oracle.q"
SMALLEST_PROPERTIES = 3


class ScriptError(MqStoreError):
    """A script line that is not an operation, or that the queue refuses."""


class Player:
    """A queue in `directory`, the stores it uses, and the numbering of the messages published so far."""

    def __init__(self, config: dict[Any, Any], directory: str, clock: Callable[[], float]) -> None:
        given = {str(name): value for name, value in config.get("env", [])}
        self.settings = Settings().with_options(given)
        self.durable = str(config.get("durable", "true")) == "true"
        self.directory, self.clock = directory, clock
        limit = self.settings.msg_store_file_size_limit
        self.persistent = MessageStore(f"{directory}/{paths.PERSISTENT_FOLDER}", limit, durable=True)
        self.transient = MessageStore(f"{directory}/{paths.TRANSIENT_FOLDER}", limit, durable=False)
        for store in (self.persistent, self.transient):
            store.start({}, {})
        self.published = 0
        self.rates: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
        self.real_rates = False
        self.queue = PagingQueue(self._state())

    def _state(self) -> QueueState:
        folder = f"{self.directory}/{paths.QUEUES_FOLDER}/{paths.queue_directory(VHOST, QUEUE)}"
        stub = paths.encode_stub(QueueName(VHOST, QUEUE, None, 1))
        settings = self.settings
        index = QueueIndex(
            folder, stub, settings.queue_index_segment_entry_count, settings.queue_index_max_journal_entries
        )
        state = QueueState(index, self.persistent, self.transient, settings, self.durable, self.clock)
        state.rates.frozen = not self.real_rates
        return state

    def close(self) -> None:
        """Closes the files as they are; data that is still in memory is not written."""
        self.queue.state.index.abandon()
        self.persistent.abandon()
        self.transient.abandon()

    def play(self, operation: Any) -> Any:
        """Performs one operation and returns its result in printable form."""
        name, arguments = (operation[0], operation[1:]) if isinstance(operation, tuple) else (operation, ())
        play: Callable[..., Any] | None = getattr(self, f"_{name}", None) if name in OPERATIONS else None
        if play is None:
            raise ScriptError(f"no such operation: {name}; the operations are {', '.join(OPERATIONS)}")
        try:
            result = play(*arguments)
        except (TypeError, ValueError, KeyError, IndexError) as error:
            raise ScriptError(f"the operation {name} is refused: {error!r}") from None
        self.queue.settle()
        return result

    def _messages(self, count: int, options: dict[Any, Any]) -> tuple[MessageRun, Mask]:
        size, persistent = int(options.get("size", 10)), str(options.get("persistent", "true")) == "true"
        length = max(int(options.get("props_len", SMALLEST_PROPERTIES)), SMALLEST_PROPERTIES)
        listed = b"\x10\x00" + bytes((2 if persistent else 1,)) + bytes(length - SMALLEST_PROPERTIES)
        numbers = range(self.published + 1, self.published + count + 1)
        self.published += count
        ids = b"".join([number.to_bytes(16, "big") for number in numbers])
        bodies = [bytes((number % 251,)) * size for number in numbers]
        template = MessageTemplate(VHOST, b"", [QUEUE], listed, persistent)
        rows = np.zeros(count, ROW)
        rows["id"], rows["size"] = np.frombuffer(ids, "V16"), size
        expiry = options.get("expiry", "undefined")
        rows["expiry"] = 0 if str(expiry) == "undefined" else int(expiry)
        below = self.settings.queue_index_embed_msgs_below
        rows["flags"] = (
            status.IN_RAM
            | (status.PERSISTENT if persistent and self.durable else 0)
            | (status.TO_INDEX if size < below and size + length < below else 0)
        )
        own = np.full(count, persistent)
        return MessageRun(rows, object_array(template.terms(bodies, ids))), own

    def _publish(self, count: int, options: dict[Any, Any]) -> None:
        for _ in range(count):
            run, own = self._messages(1, options)
            self.queue.publish(run, _delivered(options), own, batch=False)

    def _batch_publish(self, count: int, options: dict[Any, Any]) -> None:
        run, own = self._messages(count, options)
        self.queue.publish(run, _delivered(options), own)

    def _publish_delivered(self, count: int, options: dict[Any, Any]) -> list[int] | str:
        if self.queue.state.count:
            return "skipped"
        plain = {name: value for name, value in options.items() if name != "expiry"}
        sequence_ids = [self.queue.publish_delivered(self._messages(1, plain)[0], batch=False) for _ in range(count)]
        return [int(sequence_id[0]) for sequence_id in sequence_ids]

    def _batch_publish_delivered(self, count: int, options: dict[Any, Any]) -> list[int] | str:
        if self.queue.state.count:
            return "skipped"
        plain = {name: value for name, value in options.items() if name not in ("expiry", "props_len")}
        sequence_ids: list[int] = self.queue.publish_delivered(self._messages(count, plain)[0]).tolist()
        return sequence_ids

    def _fetch(self, count: int, ack_required: str) -> list[Any]:
        taken = self.queue.fetch(count, ack_required == "true")
        return self._taken(taken, ack_required, taken.redelivered.tolist())

    def _drop(self, count: int, ack_required: str) -> list[Any]:
        return self._taken(self.queue.drop(count, ack_required == "true"), ack_required, None)

    def _taken(self, taken: Taken, ack_required: str, redelivered: list[bool] | None) -> list[Any]:
        sequence_ids = taken.run.sequence_ids.tolist() if ack_required == "true" else [None] * len(taken.run)
        columns = [sequence_ids, numbers(taken.run)] + ([redelivered] if redelivered is not None else [])
        found: list[Any] = [list(row) for row in zip(*columns, strict=True)]
        return [*found, "empty"] if taken.ended else found

    def _selected(self, selector: Any) -> SequenceIds:
        pending = self.queue.state.pending.sequence_ids()
        if isinstance(selector, list):
            return np.array(selector, np.int64)
        if selector == "all":
            return pending
        kind, count = selector
        if kind == "first":
            return pending[:count]
        if kind == "last":
            return pending[::-1][:count]
        if kind == "every":
            return pending[count - 1 :: count]
        raise ValueError(f"no such selector: {kind}")

    def _ack(self, selector: Any) -> list[int]:
        return numbers(self.queue.ack(self._selected(selector)))

    def _requeue(self, selector: Any) -> list[int]:
        return numbers(self.queue.requeue(self._selected(selector)))

    def _target(self, target: int | str) -> None:
        rates = self.queue.state.rates
        if not rates.total > 0:
            rates.values = (1.0, 0.0, 0.0, 0.0)
        self.queue.set_target_ram_count(None if target == "infinity" else int(target))
        rates.values = self.rates

    def _rates(self, entered: float, left: float, delivered: float, acked: float) -> None:
        self.rates = self.queue.state.rates.values = (entered, left, delivered, acked)

    def _mode(self, mode: str) -> None:
        self.queue.set_lazy(mode == "lazy")

    def _dropwhile(self, limit: int) -> list[int | None] | None:
        return _properties(self.queue.drop_while(_expires_before(limit)))

    def _fetchwhile(self, limit: int) -> list[Any]:
        run, stays = self.queue.fetch_while(_expires_before(limit))
        pairs = [list(pair) for pair in zip(run.sequence_ids.tolist(), numbers(run), strict=True)]
        return [_properties(stays), pairs]

    def _fold(self) -> list[Any]:
        run, pending = self.queue.visit()
        return [list(pair) for pair in zip(numbers(run), pending.tolist(), strict=True)]

    def _purge(self) -> int:
        return self.queue.purge()

    def _purge_acks(self) -> None:
        self.queue.purge_acks()

    def _resume(self) -> None:
        self.queue.resume()

    def _timeout(self) -> None:
        self.queue.state.index.sync()

    def _pre_hibernate(self) -> None:
        self.queue.state.index.flush_if_dirty()

    def _restart(self, how: str) -> None:
        state = self.queue.state
        terms: QueueTerms | None = None
        if how == "clean":
            terms = self.queue.stop("", None)
        else:
            state.index.abandon()
        self.rates = (0.0, 0.0, 0.0, 0.0)
        self.queue = PagingQueue(self._state())
        index = self.queue.state.index
        found = recover_dirty(index, self.durable, terms is not None, lambda run: self.persistent.contains(run.ids))
        self.queue.start(terms, found)

    def _real_rates(self) -> None:
        self.real_rates = True
        rates = self.queue.state.rates
        rates.frozen, rates.updated = False, self.clock()

    def _sleep(self, milliseconds: int) -> None:
        time.sleep(milliseconds / 1000)

    def _ram_duration(self) -> float | str:
        duration = self.queue.ram_duration()
        return "infinity" if duration == float("inf") else duration

    def _duration_target(self, seconds: float | str) -> None:
        self.queue.set_ram_duration_target(float("inf") if seconds == "infinity" else float(seconds))


OPERATIONS = [
    "publish",
    "batch_publish",
    "publish_delivered",
    "batch_publish_delivered",
    "fetch",
    "drop",
    "ack",
    "requeue",
    "target",
    "rates",
    "mode",
    "dropwhile",
    "fetchwhile",
    "fold",
    "purge",
    "purge_acks",
    "resume",
    "timeout",
    "pre_hibernate",
    "restart",
    "real_rates",
    "sleep",
    "ram_duration",
    "duration_target",
]


def _delivered(options: dict[Any, Any]) -> bool:
    return str(options.get("delivered", "false")) == "true"


def _expires_before(limit: int) -> Callable[[Rows], Mask]:
    def test(rows: Rows) -> Mask:
        found: Mask = (rows["expiry"] != 0) & (rows["expiry"] < limit)
        return found

    return test


def _properties(row: Rows | None) -> list[int | None] | None:
    return None if row is None else [int(row["expiry"]) or None, int(row["size"])]


def numbers(run: MessageRun) -> list[int]:
    """The numbers of a script's messages, which are their ids."""
    return [int.from_bytes(message_id, "big") for message_id in run.ids.tolist()]
