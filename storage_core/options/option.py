"""An option: its name, its values and the parser of its text; and how a table of options parses given values.

`read` and the engines define which options exist; what a value does is defined elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from storage_core.errors import OptionError, choices
from storage_core.options.values import any_text, as_text

READ, STREAM, WRITE, SPARK = "read", "stream", "write", "spark"
ROCKETMQ, RABBITMQ = "rocketmq", "rabbitmq"

Parser = Callable[[str, str], Any]


@dataclass(frozen=True)
class Option:
    """One row of a table of options.

    `use` states where it applies: READ to batch reads and streams, STREAM only to streaming reads; SPARK is Spark's
    own. `engine` is set if the option applies only to stores of one engine; `aliases_of` maps an alias that only one
    engine's users know to that engine.
    """

    name: str
    values: str
    default: str | None
    meaning: str
    use: str = READ
    parse: Parser = any_text
    aliases: tuple[str, ...] = ()
    engine: str | None = None
    aliases_of: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """Its name and its aliases."""
        return (self.name, *self.aliases)


def by_name(table: Sequence[Option]) -> dict[str, Option]:
    """Options by each of their names, in lower case."""
    return {name.lower(): option for option in table for name in option.names}


def parsed(given: Mapping[str, Any], table: Sequence[Option], plural: str) -> dict[str, Any]:
    """The value of every option of `table`: parsed if it was given, else its default (None if it has none).

    Names are case-insensitive; None counts as not given. `plural` names the contents of the table in errors. Raises
    OptionError for an unknown name, with similar ones, and for a wrong value.
    """
    known = by_name(table)
    found = {option.name: None if option.default is None else option.parse(option.name, option.default)
             for option in table}  # fmt: skip
    for name, value in given.items():
        option = known.get(name.lower())
        if option is None:
            names = [option.name for option in table]
            raise OptionError(name, as_text(value), f"there is no such option; {choices(name, names, plural)}")
        if value is not None:
            found[option.name] = option.parse(option.name, as_text(value))
    return found
