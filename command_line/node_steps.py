"""From a RabbitMQ store to a node that serves it: one document of definitions, and what to do with it.

Source: rabbitmq.md 1.6: a node deletes the directories of queues that it does not know.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from storage_core.store import Definitions


def merged(found: Sequence[Definitions]) -> dict[str, Any]:
    """The definitions of several stores as one document."""
    document: dict[str, list[Any]] = {"vhosts": [], "queues": []}
    for each in found:
        for kind, items in each.document.items():
            document[kind] += [item for item in items if item not in document[kind]]
    return document


def steps(stores: Sequence[tuple[str, str]], file: str | None) -> Iterator[str]:
    """What to do, line by line. `stores` are paths with the folders where a node looks for them."""
    yield "To start a node on this:"
    yield f"  1. rabbitmqctl import_definitions {file or 'FILE'}   (FILE has what was printed)"
    yield "  2. rabbitmqctl stop"
    yield "  3. below the node's data directory put"
    for path, folder in stores:
        yield f"       {path}  in the place of  msg_stores/vhosts/{folder}"
    yield "  4. start the node"
