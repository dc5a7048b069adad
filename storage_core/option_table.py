"""The table of all options, and the functions that parse the options of a read and of a write with it.

Each engine declares the options of its writes; those of reads are in `options.read`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from storage_core.errors import OptionError, choices
from storage_core.options.option import RABBITMQ, ROCKETMQ, SPARK, STREAM, WRITE, Option
from storage_core.options.read import READ_OPTIONS, SPARKS_OWN, ReadOptions, parse_read_options
from storage_core.rabbitmq.disk.settings import SETTING_OPTIONS
from storage_core.rabbitmq.write.options import WRITE_OPTIONS as RABBITMQ_OPTIONS
from storage_core.rocketmq.write.options import WRITE_OPTIONS as ROCKETMQ_OPTIONS

_BOTH_WAYS = ("engine", "topic", "commitLogPath", "vhost", "queue")
"""Options that reads and writes share."""


def _written() -> tuple[Option, ...]:
    """The options of writes that reads do not have, each once."""
    own = {option.name: option for option in (*ROCKETMQ_OPTIONS, *RABBITMQ_OPTIONS, *SETTING_OPTIONS)}
    return tuple(option for name, option in own.items() if name not in _BOTH_WAYS)


WRITE_ONLY: tuple[Option, ...] = _written()
OPTIONS: tuple[Option, ...] = (*READ_OPTIONS, *WRITE_ONLY)
STREAM_OPTIONS = frozenset(option.name for option in READ_OPTIONS if option.use == STREAM)

_WRITE_NAMES = {name.lower(): name for name in (*(option.name for option in WRITE_ONLY), *_BOTH_WAYS)}
_OWNER = {option.name: option.engine for option in OPTIONS if option.engine is not None} | {"queue": RABBITMQ}
_DEFAULT = {option.name: option.default for option in OPTIONS}
_READING = {name.lower(): name for option in READ_OPTIONS for name in option.names}
_STORE_SETTINGS = frozenset({"vhost", *(option.name.lower() for option in SETTING_OPTIONS)})


def read_options(raw: Mapping[str, str], now_ms: int | None = None, stream: bool = False) -> ReadOptions:
    """The options of a batch read, or of a stream; `-10m` is relative to `now_ms`. Raises OptionError."""
    return parse_read_options(raw, WRITE_ONLY, now_ms, stream)


@dataclass(frozen=True)
class WriteOptions:
    """The options of a write. `engine` is None if the directory decides; `job` is passed to `begin_job`, `store` to
    `open_store`. `of_one_engine` are those that only one engine's stores support: (engine, name, text).
    """

    engine: str | None
    job: dict[str, str]
    store: dict[str, str]
    of_one_engine: tuple[tuple[str, str, str], ...]


def write_options(raw: Mapping[str, str]) -> WriteOptions:
    """The options of a write by name; the engines parse the values.

    Raises OptionError for an unknown name, with similar ones, and for an option of reads.
    """
    given: dict[str, str] = {}
    for name, text in sorted(raw.items()):
        lower = name.lower()
        if lower in SPARKS_OWN or lower == "path":
            continue
        if lower not in _WRITE_NAMES:
            raise OptionError(name, text, _why(lower))
        given[_WRITE_NAMES[lower]] = text
    engine = given.pop("engine", "auto").strip().lower()
    if engine not in ("auto", ROCKETMQ, RABBITMQ):
        raise OptionError("engine", engine, f"allowed are auto, {ROCKETMQ}, {RABBITMQ}")
    own = [
        (owner, name, text)
        for name, text in given.items()
        if (owner := _OWNER.get(name)) is not None and text.strip().lower() != _DEFAULT.get(name)
    ]
    store, job = split_settings(given)
    return WriteOptions(None if engine == "auto" else engine, job, store, tuple(own))


def split_settings(given: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The options of a write that `open_store` takes, and those that `begin_job` takes; both take `commitLogPath`."""
    store = {name: text for name, text in given.items() if name.lower() in _STORE_SETTINGS | {"commitlogpath"}}
    return store, {name: text for name, text in given.items() if name.lower() not in _STORE_SETTINGS}


def _why(lower: str) -> str:
    if lower in _READING:
        return f"{_READING[lower]} belongs to reading; leave it out when writing"
    return f"there is no such option; {choices(lower, _WRITE_NAMES.values(), 'options of a write', 40)}"


__all__ = [
    "OPTIONS",
    "SPARK",
    "STREAM_OPTIONS",
    "WRITE",
    "WRITE_ONLY",
    "ReadOptions",
    "WriteOptions",
    "read_options",
    "split_settings",
    "write_options",
]
