"""`mqstore report`: a store as one HTML page."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import click

from command_line.facts import store_info
from command_line.outcome import exit_code, say
from command_line.output.progress import shown_progress
from command_line.output.target import check_new, new_file
from command_line.parameters import store_argument, switches
from command_line.report.facts import gathered
from command_line.report.page import page
from command_line.selection import selection
from command_line.stores import opened
from command_line.switches import STORE_OPTIONS

EXAMPLES = """\b
Examples:
  mqstore report /backup/broker-a/store -o report.html
  mqstore report /var/lib/rabbitmq/mnesia/rabbit@host -o node.html
  mqstore report /backup -o all.html            every store of a folder
"""


@click.command("report", epilog=EXAMPLES)
@store_argument
@click.option("-o", "--output", required=True, metavar="FILE", help="The page to write.")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@switches(*STORE_OPTIONS)
@exit_code
def command(store: str, output: str, force: bool, **given: Any) -> int:
    """Writes an HTML page about STORE: sizes by topic, messages over time, lag, delayed messages, dead letters, files.

    The page is one file that needs no network, light or dark like the reader's system. It has topics, groups, and keys
    of dead letters, but no bodies. All messages are read, for their times and sizes.
    """
    if not force:
        check_new(output)
    wanted = selection(given)
    with (
        opened(store, wanted.options.engine, wanted.options.vhosts, wanted.store_options) as stores,
        shown_progress() as line,
    ):
        chosen = {each.named: each for each in wanted.chosen(stores)}
        found = [
            facts
            for _, facts in stores.gather(lambda named: gathered(chosen[named], store_info(named), line), list(chosen))
        ]
        line.clear()
        if found:
            moment = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
            with new_file(output, replace=force) as file:
                file.write(page(found, moment, _version()).encode())
            say(f"{output} written")
    return stores.code(bool(found))


def _version() -> str:
    try:
        return version("mqstore")
    except PackageNotFoundError:
        return "from a checkout"
