"""Finds and opens the stores at a path: the contents of a directory decide the engine.

Each engine defines what counts as a store; this module only calls its check.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from storage_core import rabbitmq, rocketmq
from storage_core.errors import OptionError, StoreNotFoundError, UnsupportedFormatError
from storage_core.files import system
from storage_core.files.address import is_remote, normal_path
from storage_core.files.file_chain import is_address
from storage_core.files.remote import registry
from storage_core.files.remote.access import Access, without_access
from storage_core.options.option import RABBITMQ, ROCKETMQ
from storage_core.options.read import check_engine, of_one_engine
from storage_core.remote_store import RemoteStore, searched
from storage_core.store import Store
from storage_core.transfer.manifest import check_finished

ENGINES = (ROCKETMQ, RABBITMQ)
LEVELS = 2
NODE_STORES = ("msg_stores", "vhosts")
"""Where a RabbitMQ node's data directory keeps its vhosts: deeper than a search goes."""
# What a rejected write may leave in a directory without a store.
NEW_STORE_NAMES = {".mqstore", "lock"}
MOST_SHOWN = 8
NODE_FOLDER = "msg_stores"


def open_directory(path: str, engine: str | None, options: Mapping[str, Any], existing: bool = False) -> Store:
    """The store in one directory; a new one if its engine is named, unless it must be an `existing` one.

    Raises StoreNotFoundError, UnsupportedFormatError, OptionError.
    """
    own, access = without_access(options)
    root = normal_path(path)
    if is_remote(root):
        return _open_remote(root, engine, own, access, existing)
    return _open_local(root, engine, own, existing)


def _open_remote(root: str, engine: str | None, options: dict[str, Any], access: Access, existing: bool) -> Store:
    """The store at a URI; it is attached to its bucket, and to those of its log, until it is closed."""
    logs = [normal_path(each) for each in log_paths_of(options)]
    used = [root, *(each for each in logs if is_remote(each))]
    attached = []
    try:
        for uri in used:
            registry.attach(uri, access)
            attached.append(uri)
            registry.look(uri)
        return RemoteStore(_open_local(root, engine, options, existing), access, used)
    except BaseException:
        for uri in attached:
            registry.detach(uri)
        raise


def log_paths_of(options: Mapping[str, Any]) -> list[str]:
    """The directories of the option `commitLogPath`."""
    text = next((str(value) for name, value in options.items() if name.lower() == "commitlogpath"), "")
    return [each.strip() for each in text.split(",") if each.strip()]


def _open_local(root: str, engine: str | None, options: Mapping[str, Any], existing: bool) -> Store:
    check_finished(root)
    if engine in ENGINES and not existing and (_is_new(root) or _is_marked_folder(root)):
        return _opened(engine, root, options)
    _check_directory(root)
    found = _engines(root, engine) or _with_log_elsewhere(engine, options)
    if not found:
        nested = _node_stores(root, engine)
        raise _several(root, nested) if nested else _no_store(root, engine)
    if len(found) > 1:
        raise UnsupportedFormatError(
            f"UnsupportedFormatError: {root}: stores of two engines lie here ({' and '.join(found)}); "
            "choose one with option engine"
        )
    return _opened(found[0], root, options)


def _with_log_elsewhere(engine: str | None, options: Mapping[str, Any]) -> list[str]:
    """RocketMQ, if `commitLogPath` names a folder with a file of a log: a directory without queues is its store then,
    as a broker builds them anew.
    """
    folders = () if engine == RABBITMQ else map(normal_path, log_paths_of(options))
    for folder in folders:
        with suppress(OSError):  # what is wrong with the folder is said when it is read as a log
            if not is_remote(folder) and any(map(is_address, system.names(folder))):
                return [ROCKETMQ]
    return []


def _opened(engine: str, root: str, options: Mapping[str, Any]) -> Store:
    check_engine(of_one_engine(options), engine, root)
    return rocketmq.open_store(root, options) if engine == ROCKETMQ else rabbitmq.open_store(root, options)


def _is_new(root: str) -> bool:
    """Whether a path is free for a new store, which is only created if its engine is named."""
    return not system.exists(root) or (system.is_folder(root) and not set(system.names(root)) - NEW_STORE_NAMES)


def _is_marked_folder(root: str) -> bool:
    """Whether a job wrote a folder of stores here and marked its version: writing it again changes nothing."""
    return system.exists(os.path.join(root, ".mqstore", "queries"))


def find_directories(path: str, engine: str | None, options: Mapping[str, Any]) -> list[str]:
    """The store directories at a path, a glob or a folder of stores (two levels deep), sorted."""
    _, access = without_access(options)
    pattern = normal_path(path)
    if not is_remote(pattern):
        return _find_local(pattern, engine, options)
    with searched(pattern, access):
        return _find_local(pattern, engine, options)


def _find_local(pattern: str, engine: str | None, options: Mapping[str, Any]) -> list[str]:
    plain = system.exists(pattern) or not set(pattern) & set("*?[")
    roots = [pattern] if plain else system.matching(pattern)
    if not roots:
        raise StoreNotFoundError(f"StoreNotFoundError: {pattern}: nothing matches this pattern; check the path")
    found: list[str] = []
    for root in roots:
        _check_directory(root)
        check_finished(root)
        found += _search(root, engine, LEVELS)
    if not found and plain and _with_log_elsewhere(engine, options):
        return roots
    if not found:
        raise _no_store(roots[0], engine)
    return sorted(dict.fromkeys(found))


def _search(root: str, engine: str | None, levels: int) -> list[str]:
    if _engines(root, engine):
        return [root]
    if engine != "rocketmq" and system.is_folder(os.path.join(root, *NODE_STORES)):
        return rabbitmq.stores_below(root)
    if not levels:
        return []
    folders = sorted(e.name for e in system.entries(root) if e.is_directory and not e.name.startswith("."))
    return [found for name in folders for found in _search(os.path.join(root, name), engine, levels - 1)]


def _node_stores(root: str, engine: str | None) -> list[str]:
    """The stores of a RabbitMQ node's data directory, which are three levels below it."""
    if engine == "rocketmq" or NODE_FOLDER not in system.names(root):
        return []
    return rabbitmq.stores_below(root)


def _engines(root: str, engine: str | None) -> list[str]:
    if engine not in (None, "auto", *ENGINES):
        raise OptionError("engine", str(engine), f"it is one of auto, {', '.join(ENGINES)}")
    looks_like = {ROCKETMQ: rocketmq.looks_like_store, RABBITMQ: rabbitmq.looks_like_store}
    candidates = ENGINES if engine in (None, "auto") else (engine,)
    return [name for name in candidates if looks_like[name](root)]


def _check_directory(root: str) -> None:
    host = os.uname().nodename
    if not system.exists(root):
        local = f"there is no such directory on host {host}; check the path"
        text = local if system.is_local(root) else "there is nothing at this address; check it"
        raise StoreNotFoundError(f"StoreNotFoundError: {root}: {text}")
    if not system.is_folder(root):
        raise StoreNotFoundError(
            f"StoreNotFoundError: {root}: this is a file; give the directory of the store, which holds commitlog"
        )
    try:
        system.names(root)
    except PermissionError:
        raise StoreNotFoundError(
            f"StoreNotFoundError: {root}: permission denied on host {host}; read as a user who may, or copy the store"
        ) from None


def _several(root: str, nested: Sequence[str]) -> StoreNotFoundError:
    return StoreNotFoundError(
        f"StoreNotFoundError: {root}: this is the data directory of a RabbitMQ node; open the store of one of its "
        f"virtual hosts: {', '.join(nested[:MOST_SHOWN])}"
    )


def _no_store(root: str, engine: str | None) -> StoreNotFoundError | UnsupportedFormatError:
    if inside := _search(root, engine, LEVELS):
        return StoreNotFoundError(
            f"StoreNotFoundError: {root}: this is a folder of stores ({len(inside)}) and none itself; "
            f"name one of them, such as {inside[0]}, or a new path"
        )
    if other := _of_other_engine(root, engine):
        return other
    kind = rabbitmq.other_kind(root)
    if kind is not None:
        return UnsupportedFormatError(
            f"UnsupportedFormatError: {root}: here lie RabbitMQ's {kind}s, which mqstore does not read alone; "
            "give the node's data directory, or consume them from a running node"
        )
    names = system.names(root)
    if not names:
        return StoreNotFoundError(f"StoreNotFoundError: {root}: the directory is empty; give the directory of a store")
    shown = ", ".join(names[:MOST_SHOWN]) + (f" and {len(names) - MOST_SHOWN} more" if len(names) > MOST_SHOWN else "")
    return StoreNotFoundError(
        f"StoreNotFoundError: {root}: no store lies here or two levels below; a RocketMQ store holds commitlog, "
        f"a RabbitMQ vhost holds .vhost; here are {shown}"
    )


def _of_other_engine(root: str, engine: str | None) -> StoreNotFoundError | None:
    """The error for a path that has stores of the other engine only; None if it has none."""
    if engine not in ENGINES:
        return None
    if engine == ROCKETMQ:
        other, theirs, requested = RABBITMQ, "RabbitMQ", "RocketMQ"
    else:
        other, theirs, requested = ROCKETMQ, "RocketMQ", "RabbitMQ"
    found = _search(root, other, LEVELS)
    if not found:
        return None
    what = f"this is a {theirs} store, not a {requested} store"
    if found != [root]:
        what = f"the stores here are {theirs}'s, not {requested}'s"
    return StoreNotFoundError(f"StoreNotFoundError: {root}: {what}")
