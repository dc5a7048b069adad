"""Messages into a Parquet or a JSON lines file, with a progress bar on a terminal."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn

from command_line.rows import json_rows
from command_line.selection import Wanted
from storage_core.errors import OptionError
from storage_core.store import Store

KINDS = (".parquet", ".jsonl")


def export(store: Store, wanted: Wanted, file: str, body: str) -> int:
    """Writes what is wanted; the number of messages. A file that could not be written to its end is removed.

    Raises OptionError for a name of another kind and for a file that is there.
    """
    kind = os.path.splitext(file)[1]
    if kind not in KINDS:
        raise OptionError("FILE", file, f"its name must end in {' or '.join(KINDS)}")
    if os.path.exists(file):
        raise OptionError("FILE", file, "is there already; choose another name or remove it")
    snapshot = store.snapshot()
    request = wanted.request(store, snapshot)
    partitions = snapshot.plan(request)
    total = sum(partition.estimated_rows for partition in partitions)
    batches = (batch for partition in partitions for batch in partition.read())
    try:
        with _counted(batches, total) as counted:
            if kind == ".parquet":
                return _parquet(counted, snapshot.schema(request), file)
            return _json_lines(counted, file, body)
    except BaseException:
        if os.path.exists(file):
            os.unlink(file)
        raise


def _parquet(batches: Iterator[pa.RecordBatch], schema: pa.Schema, file: str) -> int:
    from pyarrow import parquet

    count = 0
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        for batch in batches:
            writer.write_batch(batch)
            count += batch.num_rows
    return count


def _json_lines(batches: Iterator[pa.RecordBatch], file: str, body: str) -> int:
    count = 0
    with open(file, "x", encoding="utf-8") as target:
        for batch in batches:
            target.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in json_rows(batch, body))
            count += batch.num_rows
    return count


@contextmanager
def _counted(batches: Iterator[pa.RecordBatch], total: int) -> Iterator[Iterator[pa.RecordBatch]]:
    """The batches, with a bar on stderr that moves as they are taken; none where stderr is no terminal."""
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("messages"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("messages", total=total or None)

        def taken() -> Iterator[pa.RecordBatch]:
            for batch in batches:
                yield batch
                progress.advance(task, batch.num_rows)

        yield taken()
