"""`definitions.json`: what a node must import before it serves a store, and how to build it.

A node learns about queues from definitions, not from files: it removes directories of queues that are not defined.
Source: rabbitmq.md 1.6.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from storage_core.errors import FormatError
from storage_core.files.small_file import write_whole
from storage_core.rabbitmq.disk.span_reader import read_table

FILE = "definitions.json"
MOST_BYTES = 256 << 20


def definitions_path(root: str) -> str:
    """Path of the file, beside the vhost's directory."""
    return f"{root.rstrip('/').rpartition('/')[0] or '.'}/{FILE}"


def merged(known: bytes | None, vhost: str, queues: Mapping[str, Mapping[str, Any]]) -> bytes:
    """The definitions `known` with the vhost and its queues added; `queues` maps names to arguments.

    An existing queue keeps its arguments beside the new ones. Raises FormatError for bytes that are not definitions.
    """
    found = _checked(known)
    vhosts = {item["name"]: item for item in found.get("vhosts", [])}
    vhosts.setdefault(vhost, {"name": vhost})
    listed = {(item["vhost"], item["name"]): item for item in found.get("queues", [])}
    for name, arguments in queues.items():
        new = {"name": name, "vhost": vhost, "durable": True, "auto_delete": False, "arguments": {}}
        item = listed.setdefault((vhost, name), new)
        item["arguments"] = {**(item.get("arguments") or {}), **arguments}
    found |= {"vhosts": [vhosts[name] for name in sorted(vhosts)], "queues": [listed[key] for key in sorted(listed)]}
    return (json.dumps(found, indent=1, ensure_ascii=False) + "\n").encode()


def arguments(root: str, vhost: str) -> dict[str, dict[str, Any]]:
    """Arguments by queue name of the vhost's queues, from the file beside the store; empty without one."""
    try:
        found = _parsed(read_table(definitions_path(root), most=MOST_BYTES))
    except FormatError:
        return {}
    listed = [item for item in found.get("queues", []) if isinstance(item, dict) and item.get("vhost") == vhost]
    return {item["name"]: dict(item.get("arguments") or {}) for item in listed if isinstance(item.get("name"), str)}


def write(root: str, vhost: str, queues: Mapping[str, Mapping[str, Any]]) -> None:
    """Adds queues to the definitions beside the store; writes nothing if there are none.

    Raises CorruptionError for a file that is too long to be read, or holds something else that would be lost.
    """
    if not queues:
        return
    path = definitions_path(root)
    try:
        data = merged(read_table(path, most=MOST_BYTES), vhost, queues)
    except FormatError as error:
        raise error.at(path) from None
    write_whole(path, data)


def _checked(known: bytes | None) -> dict[str, Any]:
    found = _parsed(known)
    wanted = {"vhosts": ("name",), "queues": ("vhost", "name")}
    right = bool(found) or (known or b"{}").split() in ([b"{}"], [])
    for kind, names in wanted.items():
        items = found.get(kind, [])
        right = right and isinstance(items, list) and all(_has(item, names) for item in items)
    if not right:
        raise FormatError(0, "these are no definitions of a node, and would be replaced; mend the file or move it away")
    return found


def _has(item: Any, names: tuple[str, ...]) -> bool:
    return (
        isinstance(item, dict)
        and all(isinstance(item.get(name), str) for name in names)
        and isinstance(item.get("arguments") or {}, dict)
    )


def _parsed(known: bytes | None) -> dict[str, Any]:
    try:
        found = json.loads(known or b"{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
