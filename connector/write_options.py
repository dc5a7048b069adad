"""The options of a write: names without case, brought to the spelling that engines know; values are theirs to check.

Leaves to others: the table of options (`options`), what a value means (the engines).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from connector.options import OPTIONS, RABBITMQ, SPARK, WRITE
from storage_core.errors import OptionError, closest

_SHARED = ("engine", "topic", "commitLogPath", "vhost", "queue")
_NAMES = {option.name.lower(): option.name for option in OPTIONS if option.use == WRITE} | {
    name.lower(): name for name in _SHARED
}
_SPARKS_OWN = {option.name.lower() for option in OPTIONS if option.use == SPARK} | {"location", "provider", "owner"}
_OF_ENGINE = {option.name: option.engine for option in OPTIONS if option.engine is not None} | {"queue": RABBITMQ}
_DEFAULT = {option.name: option.default for option in OPTIONS}
_READING = {each.lower(): each for option in OPTIONS for each in (option.name, *option.aliases)}


@dataclass(frozen=True)
class WriteOptions:
    """A write's options. `engine` is None when the directory decides; `job` goes to `begin_job`, `store` to
    `open_store`. `of_one_engine` are those that only one engine's stores know: (engine, name, text).
    """

    engine: str | None
    job: dict[str, str]
    store: dict[str, str]
    of_one_engine: tuple[tuple[str, str, str], ...]


def write_options(raw: Mapping[str, str]) -> WriteOptions:
    """Raises OptionError for an unknown name, with the close ones, and for one that belongs to reading."""
    found: dict[str, str] = {}
    for name, text in sorted(raw.items()):
        lower = name.lower()
        if lower in _SPARKS_OWN:
            continue
        if lower not in _NAMES:
            raise OptionError(name, text, _why(lower))
        found[_NAMES[lower]] = text
    engine = found.pop("engine", "auto").strip().lower()
    if engine not in ("auto", "rocketmq", "rabbitmq"):
        raise OptionError("engine", engine, "allowed are auto, rocketmq, rabbitmq")
    own = [
        (of, name, text)
        for name, text in found.items()
        if (of := _OF_ENGINE.get(name)) is not None and text.strip().lower() != _DEFAULT.get(name)
    ]
    store = {name: text for name, text in found.items() if _opens(name)}
    job = {name: text for name, text in found.items() if name not in store}
    return WriteOptions(None if engine == "auto" else engine, job, store, tuple(own))


def _opens(name: str) -> bool:
    """Whether an option belongs to the store and not to one job: the vhost, and RabbitMQ's settings by their names."""
    return name == "vhost" or ("_" in name and _OF_ENGINE.get(name) == RABBITMQ)


def _why(lower: str) -> str:
    if lower in _READING:
        return f"{_READING[lower]} belongs to reading; leave it out when writing"
    near = closest(lower, list(_NAMES.values()))
    return f"there is no such option; {'did you mean ' + ' or '.join(near) + '?' if near else _all()}"


def _all() -> str:
    return f"the options of a write are {', '.join(sorted(_NAMES.values()))}"
