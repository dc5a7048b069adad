"""`mqstore offsets`: where consumer groups stand, and their lag."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from command_line.outcome import exit_code, say
from command_line.output.progress import shown_progress
from command_line.output.table import Column, column, print_table
from command_line.output.units import counted
from command_line.parameters import json_option, store_argument, switches
from command_line.selection import selection
from command_line.stores import opened
from command_line.switches import STORE_OPTIONS
from command_line.views import Row, print_json, view_rows
from storage_core.errors import OptionError, choices

EXAMPLES = """\b
Examples:
  mqstore offsets /backup/broker-a/store                 totals by group and topic
  mqstore offsets STORE --group billing --queues         each queue of one group
  mqstore offsets STORE --json > offsets.jsonl
"""


@click.command("offsets", epilog=EXAMPLES)
@store_argument
@click.option("--group", metavar="NAME", help="Only this consumer group.")
@click.option("--queues", "by_queue", is_flag=True, help="A line for each queue.")
@switches("topic", "topicPattern", *STORE_OPTIONS)
@json_option
@exit_code
def command(store: str, group: str | None, by_queue: bool, as_json: bool, **given: Any) -> int:
    """Where the consumer groups of a RocketMQ STORE stand: committed offset, end of the queue, and lag between them.

    Totals by group and topic; --json has a line for each queue.
    """
    wanted = selection(given)
    with (
        opened(store, wanted.options.engine, wanted.options.vhosts, wanted.store_options) as stores,
        shown_progress() as progress,
    ):
        rows = _of_group(view_rows(stores, wanted, "offsets"), group)
        progress.clear()
        if as_json:
            print_json(rows)
        elif rows:
            shown = rows if by_queue else _totals(rows)
            print_table(_columns(shown, by_queue), shown, _total(rows))
        if not rows and stores.stores:
            say("no consumer group has committed an offset of these queues (config/consumerOffset.json)")
        wanted.warn(stores)
    return stores.code(bool(rows))


def _of_group(rows: list[Row], group: str | None) -> list[Row]:
    if group is None:
        return rows
    known = sorted({row["group"] for row in rows})
    if group not in known:
        raise OptionError("--group", group, f"there is no such consumer group; {choices(group, known, 'groups')}")
    return [row for row in rows if row["group"] == group]


def _totals(rows: Sequence[Row]) -> list[Row]:
    """One row for each group and topic."""
    found: dict[tuple[str, str, str], Row] = {}
    for row in rows:
        key = (row["store"], row["group"], row["topic"])
        total = found.setdefault(key, {**row, "queues": 0, "committed": 0, "maxOffset": 0, "lag": 0})
        total["queues"] += 1
        for name in ("committed", "maxOffset", "lag"):
            total[name] += row[name]
    return list(found.values())


def _columns(rows: Sequence[Row], by_queue: bool) -> list[Column]:
    store = [column("store")] if len({row["store"] for row in rows}) > 1 else []
    queue = column("queue", "queueId", True) if by_queue else column("queues", right=True, rank=2)
    return [*store, column("group"), column("topic"), queue, column("committed", right=True, rank=1),
            column("end", "maxOffset", True, 1), column("lag", right=True)]  # fmt: skip


def _total(rows: Sequence[Row]) -> dict[str, str]:
    return {
        "group": counted(len({row["group"] for row in rows}), "group"),
        "topic": counted(len({row["topic"] for row in rows}), "topic"),
        "lag": f"{sum(row['lag'] for row in rows):,}",
    }
