"""`mqstore topics`: the topics of a RocketMQ store with their kinds and sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from command_line.outcome import exit_code
from command_line.output.progress import shown_progress
from command_line.output.table import Column, column, print_table
from command_line.output.units import counted, size_text
from command_line.parameters import json_option, store_argument, switches
from command_line.selection import selection
from command_line.stores import opened
from command_line.switches import STORE_OPTIONS
from command_line.views import Row, largest_first, print_json, several_column, size_column, time_column, view_rows

EXAMPLES = """\b
Examples:
  mqstore topics /backup/broker-a/store
  mqstore topics STORE --by kind             user topics, retries, dead letters, …
  mqstore topics STORE --sort bytes | head
  mqstore topics STORE --json | jq 'select(.kind == "dead letter")'
"""
SORTS = ("name", "messages", "bytes", "last")
KINDS = ("normal", "retry", "dead letter", "delay", "half", "system")
SUMS = ("queues", "messages", "bytes")


@click.command("topics", epilog=EXAMPLES)
@store_argument
@click.option(
    "--by", type=click.Choice(["topic", "kind"]), default="topic", show_default=True, help="One line for each."
)
@click.option("--sort", type=click.Choice(SORTS), default="name", show_default=True, help="Largest or newest first.")
@switches("topic", "topicPattern", *STORE_OPTIONS)
@json_option
@exit_code
def command(store: str, by: str, sort: str, as_json: bool, **given: Any) -> int:
    """Lists the topics of a RocketMQ STORE, from its files and from config/topics.json.

    The kinds are normal, retry, dead letter, half, delay and system. RabbitMQ has no topics: `mqstore ls` lists queues.
    """
    wanted = selection(given)
    with (
        opened(store, wanted.options.engine, wanted.options.vhosts, wanted.store_options) as stores,
        shown_progress() as progress,
    ):
        stores.keep_rocketmq(store, "topics")
        rows = view_rows(stores, wanted, "topics")
        rows = largest_first(_by_kind(rows) if by == "kind" else rows, sort)
        progress.clear()
        if as_json:
            print_json(rows)
        elif rows:
            print_table(_columns(rows, by), rows, _total(rows, by))
        wanted.warn(stores)
    return stores.code(bool(rows))


def _by_kind(rows: Sequence[Row]) -> list[Row]:
    """One row for each kind in each store."""
    found: dict[tuple[str, str], Row] = {}
    for row in rows:
        total = found.setdefault(
            (row["store"], row["kind"]),
            {"kind": row["kind"], "topics": 0, **dict.fromkeys(SUMS, 0), "store": row["store"]},
        )
        total["topics"] += 1
        for name in SUMS:
            total[name] += row[name]
        for name, pick in (("firstStoreTimestamp", min), ("lastStoreTimestamp", max)):
            total[name] = pick(filter(None, (total.get(name), row[name])), default=None)
    return sorted(found.values(), key=lambda row: (row["store"], KINDS.index(row["kind"])))


def _columns(rows: Sequence[Row], by: str) -> list[Column]:
    named = [column("kind"), column("topics", right=True)]
    if by == "topic":
        named = [column("topic"), column("kind", rank=1)]
    return [
        *several_column("store", rows), *named, column("queues", right=True, rank=2), column("messages", right=True),
        size_column(), time_column("first (UTC)", "firstStoreTimestamp", 4),
        time_column("last (UTC)", "lastStoreTimestamp", 3),
        column("read", "readQueues", True, 5), column("write", "writeQueues", True, 5),
        column("perm", right=True, rank=6),
    ]  # fmt: skip


def _total(rows: Sequence[Row], by: str) -> dict[str, str]:
    messages, size = (sum(row[name] for row in rows) for name in ("messages", "bytes"))
    if by == "kind":
        title = {"kind": counted(len(rows), "kind"), "topics": f"{sum(row['topics'] for row in rows):,}"}
    else:
        title = {"topic": counted(len(rows), "topic")}
    return {**title, "queues": f"{sum(row['queues'] for row in rows):,}", "messages": f"{messages:,}",
            "size": size_text(size)}  # fmt: skip
