"""`mqstore export`: messages in a Parquet, JSON lines or CSV file, or on stdout."""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO, Any

import click
import pyarrow as pa

from command_line.messages import Limit, batches, schema_of
from command_line.outcome import exit_code, say
from command_line.output.formats import CSV, JSON, TextFormat, text_format
from command_line.output.lines import emit
from command_line.output.progress import shown_progress
from command_line.output.target import check_new, new_file
from command_line.output.units import counted
from command_line.parameters import (
    PARQUET,
    PIPE,
    body_option,
    count_option,
    file_kind,
    queue_option,
    store_argument,
    switches,
)
from command_line.selection import selection
from command_line.stores import opened
from command_line.switches import MESSAGE_OPTIONS, STORE_OPTIONS

KINDS = {".parquet": PARQUET, ".jsonl": JSON, ".csv": CSV}
EXAMPLES = """\b
Examples:
  mqstore export STORE orders.parquet --topic orders
  mqstore export STORE some.csv --columns topic,key,body -n 1000
  mqstore export STORE - --topic orders | gzip > orders.jsonl.gz
  mqstore export DAMAGED all.parquet --scan log --mode dropmalformed
"""


@click.command("export", epilog=EXAMPLES)
@store_argument
@click.argument("file", type=click.Path())
@count_option
@click.option("--format", "format_", type=click.Choice([PARQUET, JSON, CSV], case_sensitive=False),
              help="What to write; the default follows from the name of FILE, and is json for stdout.")  # fmt: skip
@body_option
@queue_option
@switches(*MESSAGE_OPTIONS, *STORE_OPTIONS)
@exit_code
def command(store: str, file: str, limit: int | None, format_: str | None, body: str, **given: Any) -> int:
    """Writes the messages of STORE to FILE.parquet, FILE.jsonl or FILE.csv; - is stdout.

    FILE must not exist, and is written completely or not at all. Parquet keeps every type.
    """
    kind = file_kind(file, format_, KINDS, "written to")
    if file != PIPE:
        check_new(file)
    wanted = selection(given)
    with (
        opened(store, wanted.options.engine, wanted.options.vhosts, wanted.store_options) as stores,
        shown_progress() as line,
    ):
        chosen = wanted.chosen(stores)
        schema, found = schema_of(chosen), batches(chosen, Limit(limit), line)
        if file == PIPE:
            count = _text(found, text_format(kind, body), schema, emit)
        else:
            with new_file(file) as target:
                count = _written(found, schema, target, kind, body)
        line.clear()
        wanted.warn(stores)
    if file != PIPE:
        say(f"{counted(count, 'message')} written to {file}")
    return stores.code(count > 0)


def _written(found: Iterable[pa.RecordBatch], schema: pa.Schema, target: IO[bytes], kind: str, body: str) -> int:
    if kind != PARQUET:
        return _text(found, text_format(kind, body), schema, lambda text: target.write(text.encode()))
    from pyarrow import parquet

    count = 0
    with parquet.ParquetWriter(target, schema, compression="zstd") as writer:
        for batch in found:
            writer.write_batch(batch)
            count += batch.num_rows
    return count


def _text(found: Iterable[pa.RecordBatch], shown: TextFormat, schema: pa.Schema, write: Any) -> int:
    shown.head(schema.names, write)
    count = 0
    for batch in found:
        shown.rows(batch, write)
        count += batch.num_rows
    return count
