"""`mqstore offsets`: where consumer groups stand, and their lag."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from command_line.outcome import FINE, exit_code, say
from command_line.output.progress import shown_progress
from command_line.output.table import Column, column, print_table
from command_line.output.units import counted
from command_line.parameters import json_option, store_argument, switches
from command_line.selection import Chosen, Given, Selection, selection
from command_line.stores import lone, opened
from command_line.stream_offsets import keep_streams, print_stream_offsets
from command_line.switches import STORE_OPTIONS, parameter_of
from command_line.views import Row, print_json, several_column, view_rows
from storage_core.errors import OptionError, choices

KEYS = {"topic": ("group", "topic"), "group": ("group",), "queue": ()}
AT = parameter_of("startingTimestamp")
EXAMPLES = """\b
Examples:
  mqstore offsets /backup/broker-a/store                 totals by group and topic
  mqstore offsets STORE --group billing --queues         each queue of one group
  mqstore offsets STORE --by group                       totals by group
  mqstore offsets STORE --at 2026-11-20T08:00            where each queue was then, for a reset
  mqstore offsets STORE --diff /backup/broker-b/store    what differs from this store to that one
  mqstore offsets STORE --json > offsets.jsonl
"""


@click.command("offsets", epilog=EXAMPLES)
@store_argument
@click.option("--group", metavar="NAME", help="Only this consumer group.")
@click.option("--by", type=click.Choice(list(KEYS)), default="topic", show_default=True, help="One line for each.")
@click.option("--queues", "by_queue", is_flag=True, help="One line for each queue; the same as --by queue.")
@click.option("--at", metavar="TIME", help="Instead: the offset of each queue's first message stored at or after TIME.")
@click.option("--diff", "other", metavar="STORE", help="Instead: where the committed offsets of another store differ.")
@switches("topic", "topicPattern", *STORE_OPTIONS)
@json_option
@exit_code
def command(
    store: str, group: str | None, by: str, by_queue: bool, at: str | None, other: str | None, as_json: bool,
    **given: Any,
) -> int:  # fmt: skip
    """Shows the consumer groups of a RocketMQ STORE: committed offset, end of the queue, and the lag between them.

    Prints totals by group and topic; --json prints a line for each queue. For a RabbitMQ node: the consumers and
    publishers that its streams track.
    """
    for switch, value in (("--group", group), ("--diff", other)):
        if at is not None and value is not None:
            raise OptionError("--at", at, f"is about queues, not about a group; leave out {switch}")
    wanted = _selection(at, given)
    if other is not None:
        return _diff(wanted, (store, other), group, as_json)
    by = "queue" if by_queue else by
    with (
        opened(store, wanted.options.engine, wanted.options.vhosts, wanted.store_options) as stores,
        shown_progress() as progress,
    ):
        if keep_streams(stores, group, at):
            progress.clear()
            found = print_stream_offsets(stores, wanted, as_json)
            wanted.warn(stores)
            return stores.code(found)
        stores.keep_rocketmq(store, "consumer groups" if at is None else "times of messages")
        rows = _at(wanted.chosen(stores)) if at is not None else _of_group(view_rows(stores, wanted, "offsets"), group)
        progress.clear()
        if as_json:
            print_json(rows)
        elif rows and at is not None:
            print_table(_queue_columns(rows), rows)
        elif rows:
            shown = rows if by == "queue" else _totals(rows, KEYS[by])
            print_table(_columns(shown, by), shown, _total(rows))
        if not rows and stores.stores and at is None:
            say("no consumer group has committed an offset of these queues (the broker's files in config/)")
        wanted.warn(stores)
    return stores.code(bool(rows))


def _diff(wanted: Selection, paths: Sequence[str], group: str | None, as_json: bool) -> int:
    """Prints the queues for which the groups of two stores have committed different offsets, or only one has any."""
    committed: list[dict[tuple[str, str, int], int]] = []
    with shown_progress() as progress:
        for path in paths:
            with opened(path, wanted.options.engine, wanted.options.vhosts, wanted.store_options) as stores:
                stores.keep_rocketmq(path, "consumer groups")
                lone(stores, path, "--diff is for two stores")
                rows = view_rows(stores, wanted, "offsets")
                committed.append({(row["group"], row["topic"], row["queueId"]): row["committed"] for row in rows})
        progress.clear()
    rows = []
    groups = {name for each in committed for name, _, _ in each}
    if group is not None and group not in groups:
        raise OptionError("--group", group, f"neither store has it; {choices(group, groups, 'groups')}")
    for key in sorted({*committed[0], *committed[1]}):
        here, there = (each.get(key) for each in committed)
        if here != there and group in (None, key[0]):
            change = None if here is None or there is None else there - here
            rows.append({"group": key[0], "topic": key[1], "queueId": key[2], "committed": here,
                         "other": there, "difference": change})  # fmt: skip
    if as_json:
        print_json(rows)
    elif rows:
        numbers = [column(name, right=True) for name in ("committed", "other", "difference")]
        print_table([column("group"), column("topic"), column("queue", "queueId", True), *numbers], rows)
    say(f"{counted(len(rows), 'queue')} differ" if rows else "no difference")
    return FINE


def _selection(at: str | None, given: Given) -> Selection:
    """The selection; the time of --at becomes the start of a read."""
    try:
        return selection(given if at is None else {**given, AT: at})
    except OptionError as error:
        if at is not None and error.name == "startingTimestamp":
            raise OptionError("--at", at, error.allowed) from None
        raise


def _at(chosen: Sequence[Chosen]) -> list[Row]:
    """The offset of each queue at the request's time."""
    rows = []
    for each in chosen:
        stops = {(info.topic, info.queue_id): info.stop for info in each.snapshot.queues()}
        for key, offset in sorted(each.snapshot.offsets_at(each.request).items()):
            rows.append({"topic": key[0], "queueId": key[1], "offset": offset, "maxOffset": stops[key],
                         "messages": stops[key] - offset, "store": each.named.name})  # fmt: skip
    return rows


def _of_group(rows: list[Row], group: str | None) -> list[Row]:
    if group is None:
        return rows
    known = sorted({row["group"] for row in rows})
    if group not in known:
        raise OptionError("--group", group, f"there is no such consumer group; {choices(group, known, 'groups')}")
    return [row for row in rows if row["group"] == group]


def _totals(rows: Sequence[Row], names: Sequence[str]) -> list[Row]:
    """One row for each value of these columns in each store, with its topics and queues counted."""
    found: dict[tuple[str, ...], Row] = {}
    topics: dict[tuple[str, ...], set[str]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("store", *names))
        total = found.setdefault(key, {**row, "queues": 0, "committed": 0, "maxOffset": 0, "lag": 0})
        topics.setdefault(key, set()).add(row["topic"])
        total["topics"] = len(topics[key])
        total["queues"] += 1
        for name in ("committed", "maxOffset", "lag"):
            total[name] += row[name]
    return list(found.values())


def _columns(rows: Sequence[Row], by: str) -> list[Column]:
    topic = column("topics", right=True) if by == "group" else column("topic")
    queue = column("queue", "queueId", True) if by == "queue" else column("queues", right=True, rank=2)
    return [*several_column("store", rows), column("group"), topic, queue, column("committed", right=True, rank=1),
            column("end", "maxOffset", True, 1), column("lag", right=True)]  # fmt: skip


def _queue_columns(rows: Sequence[Row]) -> list[Column]:
    return [*several_column("store", rows), column("topic"), column("queue", "queueId", True),
            column("offset", right=True), column("end", "maxOffset", True), column("messages", right=True)]  # fmt: skip


def _total(rows: Sequence[Row]) -> dict[str, str]:
    return {
        "group": counted(len({row["group"] for row in rows}), "group"),
        "topic": counted(len({row["topic"] for row in rows}), "topic"),
        "topics": f"{len({row['topic'] for row in rows}):,}",
        "lag": f"{sum(row['lag'] for row in rows):,}",
    }
