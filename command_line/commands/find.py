"""`mqstore find`: the messages with a key or an id."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import click
import pyarrow as pa
import pyarrow.compute as pc

from command_line.messages import Limit, batches, each_store, first
from command_line.outcome import exit_code
from command_line.output.formats import CSV, text_format
from command_line.output.lines import emit
from command_line.output.progress import ProgressLine, shown_progress
from command_line.parameters import body_option, count_option, format_option, queue_option, store_argument, switches
from command_line.selection import Chosen, selection
from command_line.stores import opened
from command_line.switches import STORE_OPTIONS
from storage_core.options import values

RABBITMQ_IDS = ("messageId", "correlationId", "guid")
EXAMPLES = """\b
Examples:
  mqstore find /backup/broker-a/store order-42
  mqstore find STORE order-42 --topic orders --body json
  mqstore find STORE 7F00000100002A9F0000000000001234      a message id
  mqstore find STORE order-42 --scan log                   also what recovery leaves out
  mqstore find STORE order-42 --format '{topic}/{queueId} {queueOffset} {body}'
"""


@click.command("find", epilog=EXAMPLES)
@store_argument
@click.argument("text", metavar="KEY|MSGID")
@count_option
@format_option
@body_option
@queue_option
@switches("topic", "startingTimestamp", "endingTimestamp", "columns", "mode", "scan", "useIndex", *STORE_OPTIONS)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json, which is the default.")
@exit_code
def command(store: str, text: str, limit: int | None, format_: str, body: str, as_json: bool, **given: Any) -> int:
    """Finds the messages of STORE with a key or an id.

    RocketMQ: messages with the word in KEYS, found through the index files; if there are none, those with the message
    id. RabbitMQ has no index: all messages are searched for a messageId, correlationId or guid.
    """
    shown = text_format("json" if as_json else format_, body)
    wanted, text = selection(given), values.unicode("KEY|MSGID", text)
    with (
        opened(store, wanted.options.engine, wanted.options.vhosts, wanted.store_options) as stores,
        shown_progress() as line,
    ):
        chosen = wanted.chosen(stores, shown.columns)
        count, headed = 0, format_.lower() != CSV
        found = each_store(chosen, lambda each: _found(each, text, line), stores)
        for batch in first(found, limit):
            line.clear()
            if not headed:
                shown.head(batch.schema.names, emit)
                headed = True
            shown.rows(batch, emit)
            count += batch.num_rows
        line.clear()
        wanted.warn(stores)
    return stores.code(count > 0)


def _found(each: Chosen, text: str, line: ProgressLine) -> Iterator[pa.RecordBatch]:
    if each.named.holds_queues_only:
        yield from _by_reading(each, text, line)
        return
    by_key = replace(each, request=replace(each.request, keys=(text,)))
    count = 0
    for batch in batches([by_key], Limit(), line):
        count += batch.num_rows
        yield batch
    if not count:
        by_id = replace(each, request=replace(each.request, message_ids=(text,)))
        yield from batches([by_id], Limit(), line)


def _by_reading(each: Chosen, text: str, line: ProgressLine) -> Iterator[pa.RecordBatch]:
    """The messages of a store with the text as one of these ids; reads all messages."""
    requested = each.snapshot.schema(each.request).names
    columns = tuple(dict.fromkeys([*requested, *RABBITMQ_IDS]))
    for batch in batches([replace(each, request=replace(each.request, columns=columns))], Limit(), line):
        same = pc.or_kleene(
            pc.or_kleene(_equal(batch, RABBITMQ_IDS[0], text), _equal(batch, RABBITMQ_IDS[1], text)),
            _equal(batch, RABBITMQ_IDS[2], text),
        )
        found = batch.filter(same)
        if found.num_rows:
            yield found.select(requested)


def _equal(batch: pa.RecordBatch, name: str, text: str) -> pa.Array:
    return pc.equal(batch.column(name), text).fill_null(False)
