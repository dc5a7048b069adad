"""The arguments with which the queues of a vhost were declared: from the node's tables, definitions and files.

`node` reads the tables, `definitions` the file beside the store; this module combines them. Source: rabbitmq.md 1.2.
"""

from __future__ import annotations

import json
from typing import Any

from storage_core.formats.rabbitmq import paths
from storage_core.rabbitmq.disk import definitions, node
from storage_core.rabbitmq.read.snapshot import VhostSnapshot

MAX_PRIORITY = "x-max-priority"


def arguments_by_queue(snapshot: VhostSnapshot) -> dict[str, dict[str, Any]]:
    """The arguments of each classic queue whose name is known, including queues that have no directory.

    The node's tables take precedence. Otherwise the directories of a priority queue, and its terms from the last clean
    stop, show the minimum number of its priorities.
    """
    found = {name: dict(arguments) for name, arguments in definitions.arguments(snapshot.root, snapshot.vhost).items()}
    for name, most in _priorities_of_files(snapshot).items():
        arguments = found.setdefault(name, {})
        known = arguments.pop(MAX_PRIORITY, None)
        if most is not None:
            arguments[MAX_PRIORITY] = max(most, known if isinstance(known, int) else 0)
    for (vhost, name), queue in node.declared_queues(snapshot.root).items():
        if vhost == snapshot.vhost and queue.kind == "classic":
            found[name] = json.loads(queue.arguments)
        elif vhost == snapshot.vhost:
            found.pop(name, None)
    return found


def priorities(snapshot: VhostSnapshot) -> dict[bytes, int]:
    """The highest priority of each priority queue."""
    listed = ((name, arguments.get(MAX_PRIORITY)) for name, arguments in arguments_by_queue(snapshot).items())
    return {name.encode(): most for name, most in listed if isinstance(most, int) and 0 <= most <= paths.MAX_PRIORITY}


def _priorities_of_files(snapshot: VhostSnapshot) -> dict[str, int | None]:
    """The highest priority that the files of each queue show; None for a queue without priorities."""
    found: dict[str, int | None] = {}
    vhost = snapshot.vhost.encode()
    for directory in snapshot.directories:
        if directory.name is None:
            continue
        name, priority = directory.name.queue, directory.name.priority
        shown = name.decode("utf-8", "replace")
        known = found.get(shown)
        most = known if priority is None else max(priority, -1 if known is None else known)
        while most is not None and most < paths.MAX_PRIORITY:
            if paths.queue_directory(vhost, name, most + 1) not in snapshot.terms:
                break
            most += 1
        found[shown] = most
    return found
