"""`mqstore ls`: the queues of a store with their sizes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import click

from command_line.outcome import exit_code
from command_line.output.lines import line
from command_line.output.progress import shown_progress
from command_line.output.table import Column, column, print_table
from command_line.output.units import counted, size_text
from command_line.parameters import json_option, store_argument, switches
from command_line.selection import selection
from command_line.stores import opened
from command_line.switches import STORE_OPTIONS
from command_line.views import (
    Row,
    by_engine,
    largest_first,
    print_json,
    several_column,
    size_column,
    time_column,
    view_rows,
)
from storage_core.options.option import RABBITMQ

EXAMPLES = """\b
Examples:
  mqstore ls /backup/broker-a/store
  mqstore ls STORE --topic orders,payments
  mqstore ls STORE --sort bytes | head
  mqstore ls /var/lib/rabbitmq/mnesia/rabbit@host --vhost /
"""
SORTS = ("name", "messages", "bytes", "last")


@click.command("ls", epilog=EXAMPLES)
@store_argument
@click.option("--sort", type=click.Choice(SORTS), default="name", show_default=True, help="Largest or newest first.")
@switches("topic", "topicPattern", *STORE_OPTIONS)
@json_option
@exit_code
def command(store: str, sort: str, as_json: bool, **given: Any) -> int:
    """Lists the queues of STORE with their sizes.

    On a terminal, columns that do not fit are left out; a pipe gets all of them, and --json has exact values. Sizes are
    those of whole records (RocketMQ) or of bodies (RabbitMQ).
    """
    wanted = selection(given)
    with (
        opened(store, wanted.options.engine, wanted.options.vhosts, wanted.store_options) as stores,
        shown_progress() as progress,
    ):
        rows = largest_first(view_rows(stores, wanted, "queues"), sort)
        progress.clear()
        if as_json:
            print_json(rows)
        else:
            for number, (engine, own) in enumerate(by_engine(stores, rows)):
                if number:
                    line("")
                print_table(_columns(engine, own), own, _total(engine, own))
        wanted.warn(stores)
    return stores.code(bool(rows))


def _columns(engine: str, rows: Sequence[Row]) -> list[Column]:
    offsets = Column("offsets", _offsets, True, 3)
    if engine == RABBITMQ:
        return [
            *several_column("vhost", rows), column("queue"), column("type", rank=4), column("messages", right=True),
            column("ready", right=True, rank=1), column("unacked", "unacknowledged", True, 1), size_column(),
            column("clean stop", "cleanStop", rank=2), column("durable", rank=3), offsets,
            column("acked", right=True, rank=5), column("transient", right=True, rank=5),
            column("version", right=True, rank=5), column("arguments", rank=6), *_store_column(rows, rank=7),
        ]  # fmt: skip
    return [
        *_store_column(rows, rank=0), column("topic"), column("queue", "queueId", True),
        column("messages", right=True), size_column(), offsets, time_column("first (UTC)", "firstStoreTimestamp", 2),
        time_column("last (UTC)", "lastStoreTimestamp", 1),
    ]  # fmt: skip


def _store_column(rows: Sequence[Row], rank: int) -> list[Column]:
    return [column("store", rank=rank)] if len({row["store"] for row in rows}) > 1 else []


def _offsets(row: Mapping[str, Any]) -> str:
    low, high = row.get("minOffset"), row.get("maxOffset")
    return "" if low is None or high is None else f"{low:,}–{high:,}"


def _total(engine: str, rows: Sequence[Row]) -> dict[str, str]:
    messages, size = (sum(row.get(name) or 0 for row in rows) for name in ("messages", "bytes"))
    title = "queue" if engine == RABBITMQ else "topic"
    return {title: counted(len(rows), "queue"), "messages": f"{messages:,}", "size": size_text(size)}
