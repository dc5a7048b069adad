"""RabbitMQ's own settings, under RabbitMQ's own names, as far as a store obeys them.

The modules that use a setting define its effect. Source: rabbitmq.md 5 to 7; defaults of 3.10.8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from storage_core.errors import OptionError, choices
from storage_core.options.option import RABBITMQ, WRITE, Option

MAX_SEGMENT_ENTRY_COUNT = 16384
AT_LEAST_1 = (
    "queue_index_segment_entry_count", "classic_queue_index_v2_segment_entry_count", "msg_store_file_size_limit",
)  # fmt: skip


@dataclass(frozen=True)
class Settings:
    """Counts, bytes and ratios; `target_ram_count` None is infinity."""

    queue_index_segment_entry_count: int = 2048
    classic_queue_index_v2_segment_entry_count: int = 4096
    queue_index_max_journal_entries: int = 32768
    queue_index_embed_msgs_below: int = 4096
    msg_store_io_batch_size: int = 4096
    msg_store_credit_disc_bound: tuple[int, int] = (4000, 800)
    msg_store_file_size_limit: int = 16 << 20
    queue_explicit_gc_run_operation_threshold: int = 1000
    lazy_queue_explicit_gc_run_operation_threshold: int = 1000
    vm_memory_high_watermark: float = 0.4
    vm_memory_high_watermark_paging_ratio: float = 0.5
    target_ram_count: int | None = None

    def with_options(self, options: Mapping[str, Any]) -> Settings:
        """The settings with values set by name, as numbers or text. Raises OptionError for a wrong name or value."""
        known = {field.name for field in fields(self)}
        values = {}
        for name, value in options.items():
            if name not in known:
                raise OptionError(name, str(value), f"there is no such setting; {choices(name, known, 'settings')}")
            values[name] = _parsed(name, value, getattr(type(self), name))
        return replace(self, **values)


SETTING_OPTIONS = tuple(
    Option(field.name, "as in RabbitMQ", None, "RabbitMQ's own setting", WRITE, engine=RABBITMQ)
    for field in fields(Settings)
)


def _parsed(name: str, value: Any, default: Any) -> Any:
    if name == "target_ram_count":
        return None if value is None or str(value) == "infinity" else _number(name, value, int, 0)
    if isinstance(default, tuple):
        pair = value.split(",") if isinstance(value, str) else list(value)
        if len(pair) != 2:
            raise OptionError(name, str(value), "two numbers are required: the initial credit and the step")
        return _number(name, pair[0], int, 1), _number(name, pair[1], int, 1)
    if isinstance(default, float):
        return _number(name, value, float, 0)
    smallest = 1 if name in AT_LEAST_1 else 0
    number = _number(name, value, int, smallest)
    if name == "queue_index_segment_entry_count" and number > MAX_SEGMENT_ENTRY_COUNT:
        raise OptionError(name, str(value), f"at most {MAX_SEGMENT_ENTRY_COUNT}: a relative sequence has 14 bits")
    return number


def _number(name: str, value: Any, kind: type, smallest: int) -> Any:
    try:
        number = kind(value)
    except (TypeError, ValueError):
        raise OptionError(name, str(value), "a number is wanted") from None
    if not number >= smallest:
        raise OptionError(name, str(value), f"at least {smallest} is wanted")
    return number
