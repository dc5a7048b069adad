"""`mqstore offsets reset`: sets what a consumer group has committed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import click

from command_line.outcome import exit_code, say
from command_line.output.progress import shown_progress
from command_line.output.table import Column, column, print_table
from command_line.output.units import counted
from command_line.parameters import json_option, queue_option, store_argument, switches
from command_line.selection import Chosen, selection
from command_line.stores import NamedStore, lone, opened
from command_line.views import Row, print_json, store_rows
from storage_core.errors import OptionError, choices
from storage_core.option_table import read_options
from storage_core.store import QueueKey

EXAMPLES = """\b
Examples:
  mqstore offsets reset STORE --group billing --topic orders --to earliest           shows what would change
  mqstore offsets reset STORE --group billing --topic orders --to earliest --apply
  mqstore offsets reset STORE --group billing --topic orders --to 2026-11-20T08:00 --apply
  mqstore offsets reset STORE --group billing --topic orders --queue 3 --to 1200 --apply
"""
EARLIEST_WORD, LATEST_WORD = "earliest", "latest"
LONGEST_OFFSET = 12
"""A number of 13 digits or more is a time in epoch milliseconds."""


@click.command("offsets reset", epilog=EXAMPLES)
@store_argument
@click.option("--group", required=True, metavar="NAME", help="The consumer group.")
@click.option("--to", "target", required=True, metavar="TARGET",
              help="earliest, latest, an offset, or a time: 2026-11-20T08:00, epoch ms, -2h.")  # fmt: skip
@click.option("--apply", "really", is_flag=True, help="Apply the change; without this, nothing is written.")
@click.option("--new-group", is_flag=True, help="Allow a group that has not committed anything yet.")
@queue_option
@switches("topic", "topicPattern", "recovery", "commitLogPath")
@json_option
@exit_code
def command(store: str, group: str, target: str, really: bool, new_group: bool, as_json: bool, **given: Any) -> int:
    """Sets the committed offsets of a consumer group of a RocketMQ STORE, and so what it reads next.

    Prints the change; --apply writes it to config/consumerOffset.json (with enableLmq: lmqConsumerOffset.json), in the
    broker's own format. Refused while a broker runs on the store, because the broker would overwrite the offsets with
    its own. Without --topic, all topics are changed in which the group has committed offsets.
    """
    wanted = selection(given)
    with opened(store, "rocketmq", None, wanted.store_options) as stores, shown_progress() as progress:
        named = lone(stores, store, "a reset is for one of them")
        committed = _committed(named, group, new_group)
        chosen = _narrowed(wanted.chosen(stores)[0], committed, group)
        rows = _changes(chosen, committed, _targets(chosen, target), group)
        progress.clear()
        changes: Mapping[QueueKey, int] = {
            (row["topic"], row["queueId"]): row["offset"] for row in rows if row["offset"] != row["committed"]
        }
        if really and changes:
            named.store.set_group_offsets(group, changes)
        if as_json:
            print_json(rows)
        else:
            print_table(_columns(), rows)
        what = counted(len(changes), "offset")
        say(f"{what} of {group} {'set' if really else 'would change; add --apply to do it'}")
    return stores.code(bool(rows))


def _committed(named: NamedStore, group: str, new_group: bool) -> dict[QueueKey, int]:
    rows = store_rows(named, "offsets")
    known = sorted({row["group"] for row in rows})
    if group not in known and not new_group:
        text = f"no such consumer group has committed an offset; {choices(group, known, 'groups')}"
        raise OptionError("--group", group, f"{text}. --new-group makes one")
    return {(row["topic"], row["queueId"]): row["committed"] for row in rows if row["group"] == group}


def _narrowed(chosen: Chosen, committed: Mapping[QueueKey, int], group: str) -> Chosen:
    """The selection; if it names no topics, narrowed to those in which the group has committed something."""
    request = chosen.request
    if request.topics is not None or request.topic_pattern is not None or request.assign is not None:
        return chosen
    present = {info.topic for info in chosen.snapshot.queues()}
    topics = sorted({topic for topic, _ in committed} & present)
    if not topics:
        raise OptionError("--group", group, "has committed nothing in a topic that is there; add --topic")
    return replace(chosen, request=replace(request, topics=tuple(topics)))


def _targets(chosen: Chosen, target: str) -> dict[QueueKey, int]:
    """The new offset of each selected queue."""
    ends = {(info.topic, info.queue_id): (info.start, info.stop) for info in chosen.snapshot.queues()}
    selected = chosen.snapshot.offsets_at(chosen.request)
    if target == EARLIEST_WORD:
        return {key: ends[key][0] for key in selected}
    if target == LATEST_WORD:
        return {key: ends[key][1] for key in selected}
    if target.isascii() and target.isdigit() and len(target) <= LONGEST_OFFSET:
        offset = int(target)
        for (topic, queue), (start, stop) in ((key, ends[key]) for key in sorted(selected)):
            if not start <= offset <= stop:
                raise OptionError("--to", target, f"queue {queue} of {topic} has the offsets {start} to {stop}")
        return dict.fromkeys(selected, offset)
    try:
        start_ms = read_options({"startingTimestamp": target}).request.start_ms
    except OptionError:
        raise OptionError("--to", target, "must be earliest, latest, an offset, or a time such as "
                                          "2026-11-20T08:00 or -2h") from None  # fmt: skip
    return dict(chosen.snapshot.offsets_at(replace(chosen.request, start_ms=start_ms)))


def _changes(
    chosen: Chosen, committed: Mapping[QueueKey, int], targets: Mapping[QueueKey, int], group: str
) -> list[Row]:  # fmt: skip
    stops = {(info.topic, info.queue_id): info.stop for info in chosen.snapshot.queues()}
    return [
        {"group": group, "topic": key[0], "queueId": key[1], "committed": committed.get(key), "offset": offset,
         "maxOffset": stops[key], "lag": stops[key] - offset}
        for key, offset in sorted(targets.items())
    ]  # fmt: skip


def _columns() -> Sequence[Column]:
    return [column("group", rank=1), column("topic"), column("queue", "queueId", True),
            column("committed", right=True), column("becomes", "offset", True), column("end", "maxOffset", True),
            column("lag after", "lag", True)]  # fmt: skip
