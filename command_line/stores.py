"""The stores given to a command: one in a directory, or those in a folder, selected by virtual host.

The contents of a store belong to the engines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from command_line.outcome import DAMAGED, FINE, FOUND_NOTHING, say, text_of
from command_line.wording import error_text, in_switches
from storage_core import find_stores, open_store
from storage_core.errors import MqStoreError, OptionError, choices
from storage_core.options.option import RABBITMQ
from storage_core.options.read import check_engine
from storage_core.store import Store
from storage_core.store_names import store_names

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class NamedStore:
    """An open store and the value of the column `store` in its rows."""

    name: str
    store: Store

    @property
    def holds_queues_only(self) -> bool:
        """Whether its topics are queues by name, as RabbitMQ's are."""
        return self.store.engine == RABBITMQ


class Stores:
    """Open stores, and how many could not be read: one bad store does not hide the others."""

    def __init__(self, stores: Sequence[NamedStore], several: bool, bad: int) -> None:
        self.stores = list(stores)
        self.several = several
        self.bad = bad

    def __iter__(self) -> Iterator[NamedStore]:
        return iter(self.stores)

    @property
    def names(self) -> list[str]:
        """Their names."""
        return [named.name for named in self.stores]

    def keep_rocketmq(self, path: str, lacking: str) -> None:
        """Leaves out RabbitMQ's stores, which have no `lacking`. Raises OptionError if there are no others."""
        queues_only = [named for named in self.stores if named.holds_queues_only]
        if queues_only and len(queues_only) == len(self.stores):
            raise OptionError("STORE", path, f"RabbitMQ has no {lacking}; `mqstore ls` lists its queues")
        self.stores = [named for named in self.stores if named not in queues_only]

    def gather(
        self, work: Callable[[NamedStore], T], among: Sequence[NamedStore] | None = None
    ) -> list[tuple[NamedStore, T]]:
        """The result of `work` for each store (of `among`). A store that fails is reported and left out from then on;
        the error of a single store is raised.

        A mistake in the options is raised too, because it is the same for every store.
        """
        found = []
        for named in list(self.stores if among is None else among):
            try:
                found.append((named, work(named)))
            except OptionError:
                raise
            except (MqStoreError, OSError) as error:
                self.leave_out(named, error)
        return found

    def leave_out(self, named: NamedStore, error: MqStoreError | OSError) -> None:
        """Reports a store that failed and leaves it out from then on; raises the error of a single store."""
        if not self.several:
            raise error
        self.bad += 1
        self.stores.remove(named)
        say(f"{named.store.path} is left out: {_reason(error)}")

    def warn(self, named: NamedStore) -> None:
        """Reports what reads of a store leave out."""
        for text in named.store.snapshot().warnings():
            say(in_switches(text))

    def code(self, found: bool) -> int:
        """The exit code: 1 if a store could not be read, or nothing was found."""
        if self.bad:
            return DAMAGED
        return FINE if found else FOUND_NOTHING


@contextmanager
def opened(path: str, engine: str | None = None, vhosts: Sequence[str] | None = None,
           options: Mapping[str, str] | None = None) -> Iterator[Stores]:  # fmt: skip
    """The stores at `path`, only those of `vhosts` if given, open while the block runs.

    Raises StoreNotFoundError, UnsupportedFormatError, OptionError.
    """
    found: list[Store] = []
    paths = find_stores(path, engine, **(options or {}))
    bad = 0
    try:
        for directory in paths:
            try:
                found.append(open_store(directory, engine, **(options or {})))
            except OptionError:
                raise
            except (MqStoreError, OSError) as error:
                if len(paths) == 1:
                    raise
                bad += 1
                say(f"{directory} is left out: {_reason(error)}")
        chosen = found if vhosts is None else _of_vhosts(found, vhosts)
        kinds = [store.queue_type for store in chosen]
        names = store_names([store.path for store in chosen], kinds) if chosen else ()
        named = [NamedStore(name, store) for name, store in zip(names, chosen, strict=True)]
        yield Stores(named, len(paths) > 1, bad)
    finally:
        for store in found:
            store.close()


def lone(stores: Stores, path: str, why: str) -> NamedStore:
    """The only store. Raises OptionError if there are several, with the reason `why` there must be one."""
    if len(stores.stores) == 1:
        return stores.stores[0]
    shown = ", ".join(_called(named.store) for named in stores.stores[:8])
    raise OptionError("STORE", path, f"holds {len(stores.stores)} stores, and {why}; give one of {shown}")


def _called(store: Store) -> str:
    """A store's path, and its virtual host if the path does not name it."""
    return store.path if store.virtual_host is None else f"{store.path} (--vhost {store.virtual_host})"


def _of_vhosts(found: Sequence[Store], wanted: Sequence[str]) -> list[Store]:
    if found and not any(store.engine == RABBITMQ for store in found):
        check_engine([(RABBITMQ, "vhost", name) for name in wanted], found[0].engine, found[0].path)
    known = sorted(frozenset[str]().union(*(store.virtual_hosts for store in found)))
    for name in wanted:
        if name not in known:
            raise OptionError(
                "vhost", name, f"there is no such virtual host here; {choices(name, known, 'virtual hosts')}"
            )
    return [store for store in found if store.virtual_hosts & set(wanted)]


def _reason(error: MqStoreError | OSError) -> str:
    return error_text(error) if isinstance(error, MqStoreError) else text_of(error)
