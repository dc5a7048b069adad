"""`mqstore info`: a store at a glance."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click

from command_line.facts import store_info
from command_line.outcome import exit_code
from command_line.output.lines import line
from command_line.output.progress import shown_progress
from command_line.output.units import counted, moment_text, size_text
from command_line.parameters import json_option, store_argument, switches
from command_line.selection import selection
from command_line.stores import opened
from command_line.switches import STORE_OPTIONS
from command_line.views import Row
from storage_core.options.option import RABBITMQ

EXAMPLES = """\b
Examples:
  mqstore info /backup/broker-a/store
  mqstore info /var/lib/rabbitmq/mnesia/rabbit@host --vhost /
  mqstore info /backup --json | jq -r 'select(.clean | not) | .path'
"""
SPARSE = 0.8
"""Files that take less than this fraction of their length on disk are sparse: their disk space is shown too."""


@click.command("info", epilog=EXAMPLES)
@store_argument
@switches(*STORE_OPTIONS)
@json_option
@exit_code
def command(store: str, as_json: bool, **given: Any) -> int:
    """Shows STORE at a glance: engine and version, how it was stopped, messages and times, lag, files, and what a
    broker startup would cut.
    """
    wanted = selection(given)
    with (
        opened(store, wanted.options.engine, wanted.options.vhosts, wanted.store_options) as stores,
        shown_progress() as progress,
    ):
        found = [facts for _, facts in stores.gather(store_info)]
        progress.clear()
        for number, facts in enumerate(found):
            if as_json:
                line(json.dumps(facts, ensure_ascii=False))
                continue
            if number:
                line("")
            for title, text in _lines(facts):
                line(f"{title:<10}{text}")
    return stores.code(bool(found))


def _lines(facts: Row) -> Iterator[tuple[str, str]]:
    yield "store", facts["path"]
    if facts["vhost"] is not None:
        yield "vhost", facts["vhost"]
    yield "engine", _engine(facts)
    yield "state", _state(facts)
    yield "messages", _shown_messages(facts)
    if facts.get("firstStoreTimestamp"):
        first, last = (moment_text(facts[name]) for name in ("firstStoreTimestamp", "lastStoreTimestamp"))
        yield "stored", f"{first} to {last} UTC"
    if facts["groups"]:
        yield "groups", f"{counted(facts['groups'], 'consumer group')}, lag {facts['lag']:,}"
    sparse = facts["diskBytes"] < SPARSE * facts["fileBytes"]
    on_disk = f", {size_text(facts['diskBytes'])} on disk" if sparse else ""
    yield "files", f"{size_text(facts['fileBytes'])} in {counted(facts['files'], 'file')}{on_disk}"
    yield from _cut(facts)
    if facts["repairable"]:
        yield "repair", f"mqstore repair {facts['path']} --to DIR"
        yield "", "(mqstore verify lists the damage)"


def _engine(facts: Row) -> str:
    if facts["engine"] == RABBITMQ:
        return f"RabbitMQ, {facts['version']}"
    rules = {"4.9": "no sign of 5.x, read by the rules of 4.9", "5.x": "signs of 5.x, read by the rules of 5.x"}
    log = "; its log is a DLedger log, which mqstore does not change" if facts["replicated"] else ""
    return f"RocketMQ, {rules.get(facts['version'], 'queues as they are (--recovery none)')}{log}"


def _state(facts: Row) -> str:
    if facts["running"]:
        text = "a broker has it open"
    elif facts["version"].startswith("raft"):
        text = "a raft log, which reads the same after a stop and a kill"
    elif facts["version"].startswith("stream"):
        text = "a stream's log, which reads the same after a stop and a kill"
    elif facts["clean"]:
        text = "stopped cleanly"
    elif facts["engine"] == RABBITMQ:
        text = "not stopped cleanly: a node redelivers all messages"
    else:
        text = "not stopped cleanly (abort exists)"
    unfinished = "; a write of mqstore is unfinished, the next write finishes it"
    return text + (unfinished if facts["unfinishedWrite"] else "")


def _shown_messages(facts: Row) -> str:
    if "unreadable" in facts:
        return str(facts["unreadable"])
    topics = "" if facts["topics"] is None else f" of {counted(facts['topics'], 'topic')}"
    text = f"{facts['messages']:,} ({size_text(facts['bytes'])}) in {counted(facts['queues'], 'queue')}{topics}"
    return text + (f", {facts['unacknowledged']:,} unacknowledged" if facts["unacknowledged"] else "")


def _cut(facts: Row) -> Iterator[tuple[str, str]]:
    """What is not served: for a RocketMQ store what follows the end of its log, for a RabbitMQ store its notes."""
    if facts["cutBytes"]:
        start = f"from physical offset {facts['cutOffset']:,} on"
        yield "cut", f"a broker startup would cut up to {size_text(facts['cutBytes'])} {start}"
        yield "", "(mqstore cat STORE --scan log reads the intact messages)"
    elif facts["engine"] != RABBITMQ:
        yield "cut", "nothing"
    else:
        yield from (("note", text) for text in facts["notes"])
