"""`mqstore COMMAND STORE …`: the commands, their options and their exit codes.

Leaves to `selection` which messages are meant, to `rows` how they look, to `export` files, to `stores` errors.
Source: DESIGN 7.7, interface.md 37 to 39.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import click
import pyarrow as pa

from command_line import export as exporting
from command_line.node_steps import merged, steps
from command_line.rows import BODIES, json_rows, print_line, print_table
from command_line.selection import Wanted, batches, found
from command_line.stores import FINE, FOUND_NOTHING, all_stores, command, one_store, say
from storage_core.store import Mode, Store

HELP = {"help_option_names": ["-h", "--help"]}


@click.group(context_settings=HELP)
@click.version_option(package_name="mqstore", prog_name="mqstore")
def main() -> None:
    """Stores of Apache RocketMQ and RabbitMQ on disk, without a broker. Reading changes nothing.

    Exit codes: 0; 1 when damage or nothing was found; 2 for a mistake in what was asked.
    """


def store_argument(function: Callable[..., Any]) -> Callable[..., Any]:
    """STORE: a store's directory, or one with several below it."""
    return click.argument("store", type=click.Path())(function)


def json_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """--json."""
    return click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")(function)


def body_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """--body."""
    shown = click.Choice(list(BODIES))
    return click.option("--body", type=shown, default="text", show_default=True, help="How bodies look.")(function)


def message_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of `cat` and `export` that choose messages."""
    for decorate in (
        click.option("--mode", type=click.Choice([m.value for m in Mode]), default="FAILFAST", show_default=True,
                     help="What becomes of damaged messages."),
        click.option("--columns", help="Comma list of columns."),
        click.option("--tag", help="RocketMQ: A, or A || B."),
        click.option("--key", help="RocketMQ: one of the KEYS words."),
        click.option("--to", "stop_time", help="RocketMQ: store time before this, epoch ms or ISO 8601."),
        click.option("--from", "start_time", help="RocketMQ: store time from here on, epoch ms or ISO 8601."),
        click.option("--stop", type=int, help="Offset or sequence id to stop before."),
        click.option("--start", type=int, help="Offset or sequence id to start at."),
        click.option("--queue", help="RocketMQ: number of a queue of --topic. RabbitMQ: name of a queue."),
        click.option("--topic", "topics", multiple=True, help="Topic, or RabbitMQ queue; may be repeated."),
    ):  # fmt: skip
        function = decorate(function)
    return function


@main.command()
@store_argument
@json_option
@command
def ls(store: str, as_json: bool) -> int:
    """The queues of STORE with their sizes."""
    return _show_view(store, "queues", as_json)


@main.command()
@store_argument
@json_option
@command
def offsets(store: str, as_json: bool) -> int:
    """Where the consumer groups of a RocketMQ STORE stand, and their lag."""
    return _show_view(store, "offsets", as_json)


def _show_view(path: str, view: str, as_json: bool) -> int:
    rows = [
        {**row, "store": store.name}
        for store in all_stores(path)
        for batch in store.view(view)
        for row in json_rows(batch)
    ]
    if as_json:
        for row in rows:
            print_line(row)
    elif len({row["store"] for row in rows}) > 1:
        print_table(rows)
    else:
        print_table([{name: value for name, value in row.items() if name != "store"} for row in rows])
    return FINE if rows else FOUND_NOTHING


@main.command()
@store_argument
@message_options
@click.option("-n", "--limit", type=click.IntRange(0), help="At most so many messages.")
@body_option
@click.option("--json", "as_json", is_flag=True, help="For symmetry: messages are always JSON lines.")
@command
def cat(store: str, limit: int | None, body: str, as_json: bool, **wanted: Any) -> int:
    """The messages of STORE as JSON lines."""
    del as_json
    with one_store(store) as opened:
        count = _print(batches(opened, Wanted(**wanted)), body, limit)
        _warn(opened)
    return FINE if count else FOUND_NOTHING


@main.command()
@store_argument
@click.argument("text", metavar="KEY|MSGID")
@body_option
@click.option("--json", "as_json", is_flag=True, help="For symmetry: messages are always JSON lines.")
@command
def find(store: str, text: str, body: str, as_json: bool) -> int:
    """The messages with a key or an id (RabbitMQ: messageId, correlationId or guid) as JSON lines."""
    del as_json
    count = sum(_print(found(opened, text), body, None) for opened in all_stores(store))
    return FINE if count else FOUND_NOTHING


def _print(found_batches: Iterable[pa.RecordBatch], body: str, limit: int | None) -> int:
    count = 0
    for batch in found_batches:
        if limit is not None:
            batch = batch.slice(0, limit - count)
        for row in json_rows(batch, body):
            print_line(row)
        count += batch.num_rows
        if limit is not None and count >= limit:
            break
    return count


def _warn(store: Store) -> None:
    for line in store.snapshot().warnings():
        say(line)


@main.command()
@store_argument
@click.argument("file", type=click.Path(dir_okay=False))
@message_options
@body_option
@command
def export(store: str, file: str, body: str, **wanted: Any) -> int:
    """Writes the messages of STORE to FILE.parquet or FILE.jsonl, which must not exist."""
    with one_store(store) as opened:
        count = exporting.export(opened, Wanted(**wanted), file, body)
        _warn(opened)
    say(f"{count:,} messages written to {file}")
    return FINE if count else FOUND_NOTHING


@main.command()
@store_argument
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Write the definitions to this file.")
@click.option("--json", "as_json", is_flag=True, help="The definitions on one line.")
@command
def definitions(store: str, output: str | None, as_json: bool) -> int:
    """What a RabbitMQ node must import before it serves STORE; the steps go to stderr."""
    each = [(opened.path, opened.definitions()) for opened in all_stores(store)]
    text = json.dumps(merged([found for _, found in each]), indent=None if as_json else 1, ensure_ascii=False)
    if output is None:
        click.echo(text)
    else:
        with open(output, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    for line in steps([(path, needed.folder) for path, needed in each], output):
        click.echo(line, err=True)
    return FINE
