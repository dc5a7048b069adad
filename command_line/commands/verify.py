"""`mqstore verify`: everything that is wrong in a store, and what a broker does with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click

from command_line.outcome import DAMAGED, exit_code
from command_line.output.lines import line
from command_line.output.progress import ProgressLine, shown_progress
from command_line.parameters import json_option, store_argument, switches
from command_line.selection import selection
from command_line.stores import NamedStore, Stores, opened
from command_line.switches import STORE_OPTIONS
from command_line.views import Row, print_json
from storage_core.options.option import RABBITMQ

EXAMPLES = """\b
Examples:
  mqstore verify /backup/broker-a/store
  mqstore verify STORE --json | head
  mqstore verify STORE && echo intact
"""


@click.command("verify", epilog=EXAMPLES)
@store_argument
@switches(*STORE_OPTIONS)
@json_option
@exit_code
def command(store: str, as_json: bool, **given: Any) -> int:
    """Reads the whole STORE and lists what is damaged in it. If nothing is, prints nothing and exits with 0.

    Log, queues and index (RabbitMQ: index and message store) are compared record by record. Each finding names its
    place, what a broker does about it, and whether `mqstore repair` can repair it.
    """
    wanted = selection(given)
    with (
        opened(store, wanted.options.engine, wanted.options.vhosts, wanted.store_options) as stores,
        shown_progress() as progress,
    ):
        counts = stores.gather(lambda named: _printed(named, stores, progress, as_json))
        if stores.bad or any(count for _, count in counts):
            return DAMAGED
    return stores.code(True)


def _printed(named: NamedStore, stores: Stores, progress: ProgressLine, as_json: bool) -> int:
    """Prints the findings of one store as they are found; returns their number."""
    count = 0
    for row in _rows(named):
        progress.clear()
        if as_json:
            print_json([row])
        else:
            who = "a node" if named.store.engine == RABBITMQ else "a broker"
            line(_text(row, f"{named.name}/" if stores.several else "", who))
        count += 1
    return count


def _rows(named: NamedStore) -> Iterator[Row]:
    for finding in named.store.verify():
        yield {**vars(finding), "store": named.name}


def _text(row: Row, before: str, who: str) -> str:
    """`FILE at POSITION: KIND: REASON; a broker …`."""
    place = f"{before}{row['file']}" + (f" at {row['position']}" if row["position"] or row["length"] else "")
    queue = f" ({row['queue']})" if row["queue"] and row["queue"] not in row["file"] else ""
    effect = f"; {who} {row['effect']}" if row["effect"] else ""
    lost = "" if row["repairable"] else "; repair does not mend it"
    return f"{place}: {row['kind']}{queue}: {row['reason']}{effect}{lost}"
