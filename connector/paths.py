"""The paths of a load as Spark passes them; local paths are made absolute on the driver.

Finding the stores there, globs, folders of stores and the schemes of URIs belong to `storage_core.find_stores`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping

from storage_core.errors import OptionError

NO_PATH = (
    "no path: give the store's directory, as in load('/backup/store') or save('/data/store'). Spark 4 does not hand a "
    "catalog table's path to Python sources; for SQL use CREATE TEMPORARY VIEW … USING mqstore OPTIONS (path '…')"
)
_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def load_paths(options: Mapping[str, str]) -> tuple[str, ...]:
    """The absolute paths of `load(path)` or `load([a, b])`; () if there is none.

    Relative paths are resolved in the working directory of the process that plans the load, which is the driver's.
    """
    paths: list[str] = []
    if options.get("path"):
        paths.append(options["path"])
    if options.get("paths"):
        paths.extend(_listed(options["paths"]))
    return tuple(dict.fromkeys(absolute(path) for path in paths))


def absolute(path: str) -> str:
    """A local absolute path, or a URI as it was given."""
    text = path.strip()
    if text.lower().startswith("file:"):
        text = text[len("file:") :]
        if text.startswith("//"):
            text = "/" + text[2:].partition("/")[2]
    elif is_uri(text):
        return text
    return os.path.abspath(text)


def is_uri(path: str) -> bool:
    """Whether a path begins with a scheme."""
    return _URI.match(path) is not None


def _listed(text: str) -> list[str]:
    try:
        paths = json.loads(text)
    except ValueError:
        paths = None
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        raise OptionError("paths", text, 'must be a JSON list of texts such as ["/a", "/b"]')
    return paths
