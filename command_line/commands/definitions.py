"""`mqstore definitions`: what a RabbitMQ node must import before it serves a store.

Source: rabbitmq.md 1.6: a node deletes the directories of queues that it does not know.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import click

from command_line.outcome import exit_code
from command_line.output.lines import flush, line
from command_line.output.target import new_file
from command_line.parameters import store_argument, switches
from command_line.selection import selection
from command_line.stores import opened
from storage_core.errors import OptionError
from storage_core.store import Definitions

EXAMPLES = """\b
Examples:
  mqstore definitions /var/lib/rabbitmq/mnesia/rabbit@host -o definitions.json
  mqstore definitions STORE | jq '.queues[].name'
"""


@click.command("definitions", epilog=EXAMPLES)
@store_argument
@click.option("-o", "--output", metavar="FILE", help="Write the definitions to this file instead of stdout.")
@switches("vhost", "storage")
@click.option("--json", "as_json", is_flag=True, help="Print the definitions on one line.")
@exit_code
def command(store: str, output: str | None, as_json: bool, **given: Any) -> int:
    """Prints the vhosts and queues of STORE as a RabbitMQ node imports them, and the steps on stderr."""
    wanted = selection(given)
    with opened(store, None, wanted.options.vhosts, wanted.store_options) as stores:
        # A node lists its quorum queues and streams itself: what it needs about them is in its own tables.
        classic = [named for named in stores if named.store.queue_type == "classic"]
        if not classic and stores.stores:
            text = "is for classic queues; a node finds streams and quorum queues only with its own tables beside them"
            raise OptionError("STORE", store, text)
        found = stores.gather(lambda named: named.store.definitions(), classic)
    text = json.dumps(_merged([each for _, each in found]), indent=None if as_json else 1, ensure_ascii=False)
    if output is None:
        line(text)
    else:
        with new_file(output, replace=True) as file:
            file.write(f"{text}\n".encode())
    flush()
    for step in _steps([(named.store.path, each.folder) for named, each in found], output):
        click.echo(step, err=True)
    return stores.code(bool(found))


def _merged(found: Sequence[Definitions]) -> dict[str, Any]:
    """The definitions of several stores as one document."""
    document: dict[str, list[Any]] = {"vhosts": [], "queues": []}
    for each in found:
        for kind, items in each.document.items():
            document[kind] += [item for item in items if item not in document[kind]]
    return document


def _steps(stores: Sequence[tuple[str, str]], file: str | None) -> Iterator[str]:
    """The steps to take, line by line. `stores` are paths with the folders where a node looks for them."""
    yield "To start a node on this:"
    yield f"  1. rabbitmqctl import_definitions {file or 'FILE'}" + ("" if file else "   (FILE: save what was printed)")
    yield "  2. rabbitmqctl stop"
    yield "  3. below the node's data directory, replace each directory by the store's:"
    for path, folder in stores:
        yield f"       msg_stores/vhosts/{folder}  by  {path}"
    yield "     (cp -a --sparse=always, or rsync -aS: files may be sparse)"
    yield "  4. chown -R rabbitmq: on them, or whoever the node runs as"
    yield "  5. start the node"
    yield "Not in the definitions: exchanges, bindings, users, permissions, policies. Export them from a running node"
    yield "(rabbitmqctl export_definitions), or create them again."
