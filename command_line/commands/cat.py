"""`mqstore cat`: messages as JSON lines, CSV or by a template."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import click

from command_line.following import coming, follow
from command_line.messages import Limit, batches, first, schema_of
from command_line.outcome import exit_code
from command_line.output.formats import CSV, text_format
from command_line.output.lines import emit, flush
from command_line.output.progress import shown_progress
from command_line.parameters import (
    IntegerRange,
    NumberRange,
    body_option,
    count_option,
    format_option,
    queue_option,
    store_argument,
    switches,
)
from command_line.selection import selection
from command_line.stores import opened
from command_line.switches import MESSAGE_OPTIONS, STORE_OPTIONS
from storage_core.errors import OptionError

EXAMPLES = """\b
Examples:
  mqstore cat STORE --topic orders -n 5
  mqstore cat STORE --topic orders --last 10          the ten newest, oldest first
  mqstore cat STORE --newest-first -n 10              the ten newest, newest first
  mqstore cat STORE --topic orders --queue 3 --start 1000 --stop 1010
  mqstore cat STORE --from -2h --tag 'paid || sent' --columns key,body
  mqstore cat STORE --format '{storeTimestamp} {key} {body.price}'
  mqstore cat STORE --topic orders --last 10 --follow as tail -f: waits for new messages
  mqstore cat STORE --scan log --mode dropmalformed   past damage, without the queues
  mqstore cat /var/lib/rabbitmq/mnesia/rabbit@host --vhost / --queue jobs --body json
"""


@click.command("cat", epilog=EXAMPLES)
@store_argument
@count_option
@click.option("--last", type=IntegerRange(0), metavar="N", help="The N newest messages.")
@click.option("--newest-first", is_flag=True, help="Newest first; with -n or --last.")
@click.option("-f", "--follow", "follows", is_flag=True, help="Continue with new messages as they arrive.")
@click.option("--interval", type=NumberRange(0.01), default=1.0, show_default=True, metavar="SECONDS",
              help="How often --follow polls.")  # fmt: skip
@format_option
@body_option
@queue_option
@switches(*MESSAGE_OPTIONS, *STORE_OPTIONS)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json, which is the default.")
@exit_code
def command(
    store: str, limit: int | None, last: int | None, newest_first: bool, follows: bool, interval: float, format_: str,
    body: str, as_json: bool, **given: Any,
) -> int:  # fmt: skip
    """Prints the messages of STORE, in the order of its queues.

    A RocketMQ store is read through its queues as a broker would serve them; --scan log reads every intact record of
    the log instead.
    """
    shown = text_format("json" if as_json else format_, body)
    wanted = selection(given)
    limit, newest = _limit(limit, last)
    with (
        opened(store, wanted.options.engine, wanted.options.vhosts, wanted.store_options) as stores,
        shown_progress() as line,
        ExitStack() as stack,
    ):
        chosen = wanted.chosen(stores, shown.columns)
        followed = stack.enter_context(follow(chosen)) if follows else []
        chosen = [each.chosen for each in followed] or chosen
        count = 0
        if format_.lower() == CSV:
            shown.head(schema_of(chosen).names, emit)
        for batch in batches(chosen, Limit(limit, newest, newest_first), line, stores):
            line.clear()
            shown.rows(batch, emit)
            count += batch.num_rows
        line.clear()
        wanted.warn(stores)
        if follows and (newest or count != limit):
            flush()
            for batch in first(coming(followed, interval), None if newest or limit is None else limit - count):
                shown.rows(batch, emit)
                flush()
                count += batch.num_rows
    return stores.code(count > 0)


def _limit(limit: int | None, last: int | None) -> tuple[int | None, bool]:
    if limit is not None and last is not None:
        raise OptionError("--last", str(last), "excludes -n; give one of the two")
    return (limit, False) if last is None else (last, True)
