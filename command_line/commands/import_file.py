"""`mqstore import`: the messages of a Parquet or JSON lines file as one atomic write."""

from __future__ import annotations

import os

import click

from command_line.incoming import JSON, incoming, shown_name
from command_line.outcome import exit_code, say
from command_line.output.progress import shown_progress
from command_line.output.units import counted
from command_line.parameters import BODIES, PARQUET, file_kind, switches
from storage_core import open_store
from storage_core.errors import MqStoreError, OptionError, RowError
from storage_core.option_table import split_settings
from storage_core.options.option import RABBITMQ, ROCKETMQ
from storage_core.store import Store

KINDS = {".parquet": PARQUET, ".jsonl": JSON, ".json": JSON}
EXAMPLES = """\b
Examples:
  mqstore export OLD orders.parquet --topic orders && mqstore import orders.parquet NEW --engine rocketmq
  mqstore import orders.jsonl STORE --topic orders-replayed
  mqstore import orders.jsonl STORE --dry-run                     checks every row
  mqstore cat OLD --topic orders --body base64 | mqstore import - NEW --engine rocketmq --body base64
  mqstore export DEAD all.parquet --scan log --decompress false --mode dropmalformed
  mqstore import all.parquet RESCUED --engine rocketmq --set preserve=true
"""


@click.command("import", epilog=EXAMPLES)
@click.argument("file", type=click.Path())
@click.argument("store", type=click.Path())
@click.option("--engine", type=click.Choice([ROCKETMQ, RABBITMQ]), help="The engine of a new STORE.")
@click.option("--topic", metavar="NAME", help="The topic, or RabbitMQ queue, of all messages.")
@click.option("--format", "format_", type=click.Choice([PARQUET, JSON], case_sensitive=False),
              help="What FILE contains; the default follows from its name.")  # fmt: skip
@click.option("--body", type=click.Choice(BODIES, case_sensitive=False), default="text", show_default=True,
              help="How bodies are encoded in JSON lines.")  # fmt: skip
@click.option("--set", "options", multiple=True, metavar="OPTION=VALUE", help="An option of a write: preserve=true.")
@click.option("--dry-run", is_flag=True, help="Check all rows, but write nothing.")
@switches("commitLogPath")
@exit_code
def command(
    file: str, store: str, engine: str | None, topic: str | None, format_: str | None, body: str,
    options: tuple[str, ...], dry_run: bool, commit_log_path: str | None,
) -> int:  # fmt: skip
    """Writes the messages of FILE.parquet or FILE.jsonl, as `mqstore export` writes them, into STORE: all or none; - is
    JSON lines from stdin.

    Columns are those of a Spark write. Text bodies lose bytes that are not UTF-8: export Parquet, or use --body base64.
    """
    kind = file_kind(file, format_, KINDS, "read from")
    where, settings = split_settings(_settings(options, topic))
    where |= {} if commit_log_path is None else {"commitLogPath": commit_log_path}
    with (
        incoming(file, kind, body) as source,
        _opened(store, engine, where) as target,
        shown_progress() as line,
    ):
        job = target.begin_job(source.columns, "mqstore import", **settings)
        try:
            part = job.stage(source.batches(line))
            count = part.rows
            if dry_run:
                job.abort()
            else:
                count = job.commit([part])
        except RowError as error:
            job.abort()
            raise MqStoreError(_of_file(error, file)) from None
        except BaseException:
            job.abort()
            raise
        line.clear()
        for text in job.warnings:
            say(text)
    say(f"{counted(count, 'message')} {'can be' if dry_run else ''} written to {store}".replace("  ", " "))
    return 0


def _settings(options: tuple[str, ...], topic: str | None) -> dict[str, str]:
    settings = {}
    for text in options:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise OptionError("--set", text, "must be an option of a write and its value, such as preserve=true")
        settings[name] = value
    return settings if topic is None else {**settings, "topic": topic}


def _opened(path: str, engine: str | None, where: dict[str, str]) -> Store:
    if path.lower().startswith("file:"):
        path = "/" + path[len("file:") :].lstrip("/")
    if "://" in path:  # refused, whether the store exists or not
        return open_store(path, engine or ROCKETMQ, **where)
    free = not os.path.exists(path) or (os.path.isdir(path) and not os.listdir(path))
    if free and engine is None:
        raise OptionError("STORE", path, f"there is no store yet; add --engine {ROCKETMQ} or --engine {RABBITMQ}")
    return open_store(path, engine, **where)


def _of_file(error: RowError, file: str) -> str:
    return str(error).replace(f"row {error.row} of its task", f"{shown_name(file)}: row {error.row + 1}")
