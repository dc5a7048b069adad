"""How a remote store is accessed: the options `storage.*`, whose values no text shows.

What is not given, the libraries take from the environment, then from the machine's identity. Source:
docs/object-storage.md "Access".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from storage_core.errors import OptionError, closest

PREFIX = "storage."
NAMES = (
    "endpoint", "region", "accessKey", "secretKey", "sessionToken", "sasToken", "account", "credentialsFile",
    "caFile", "anonymous", "pathStyle", "timeout",
)  # fmt: skip
SECRET = {"accessKey", "secretKey", "sessionToken", "sasToken"}
FLAGS = {"anonymous", "pathStyle"}
DEFAULT_TIMEOUT_S = 30.0
_BY_LOWER = {name.lower(): name for name in NAMES}


class Access:
    """The given options by name. Picklable as plain text; equal if the options are. `repr` shows no values."""

    def __init__(self, given: Mapping[str, str] | None = None) -> None:
        self.given = dict(sorted((given or {}).items()))

    def get(self, name: str) -> str | None:
        """The value of one option."""
        return self.given.get(name)

    def flag(self, name: str, default: bool = False) -> bool:
        """The value of one boolean option."""
        text = self.given.get(name)
        return default if text is None else text.lower() == "true"

    @property
    def timeout_s(self) -> float:
        """How long one request may take, in seconds."""
        return float(self.given.get("timeout", DEFAULT_TIMEOUT_S))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Access) and self.given == other.given

    def __hash__(self) -> int:
        return hash(tuple(self.given.items()))

    def __repr__(self) -> str:
        return f"Access({', '.join(self.given)})"


def is_storage_option(name: str) -> bool:
    """Whether an option controls access to a store."""
    return name.lower().startswith(PREFIX)


def without_access(options: Mapping[str, Any]) -> tuple[dict[str, Any], Access]:
    """The options of the store itself, and those that control access to it, checked. Raises OptionError."""
    own, given = {}, {}
    for name, value in options.items():
        if not is_storage_option(name):
            own[name] = value
            continue
        known = _BY_LOWER.get(name[len(PREFIX) :].lower())
        if known is None:
            near = closest(name, [PREFIX + each for each in NAMES])
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(PREFIX + each for each in NAMES)}"
            raise OptionError(name, "…", f"there is no such option; {hint}")
        given[known] = _checked(PREFIX + known, known, str(value).strip())
    return own, Access(given)


def _checked(name: str, known: str, text: str) -> str:
    if known in FLAGS and text.lower() not in ("true", "false"):
        raise OptionError(name, text, "is true or false")
    if known == "endpoint" and not text.lower().startswith(("http://", "https://")):
        raise OptionError(name, text, "begins with https:// or http://")
    if known == "timeout":
        try:
            good = 0 < float(text) <= 3600
        except ValueError:
            good = False
        if not good:
            raise OptionError(name, text, "is a number of seconds up to 3600")
    if not text:
        raise OptionError(name, "", "is empty; leave it out")
    return text
