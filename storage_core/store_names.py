"""The names that distinguish the rows of several stores."""

from __future__ import annotations

import os
from collections.abc import Sequence


def store_names(directories: Sequence[str], kinds: Sequence[str] = ()) -> tuple[str, ...]:
    """Values of the column `store`: the last part of the path; for several stores, the path below their common folder.

    `kinds` are their queue types: stores of one type are named as if there were no others, if all names stay distinct,
    so that quorum queues on a node do not rename its virtual hosts.
    """
    if len(set(kinds)) > 1:
        pairs = list(zip(directories, kinds, strict=True))
        alike = {kind: iter(store_names([path for path, own in pairs if own == kind])) for kind in kinds}
        names = tuple(next(alike[kind]) for kind in kinds)
        if len(set(names)) == len(names):
            return names
    if len(directories) == 1:
        return (os.path.basename(directories[0].rstrip("/")) or "/",)
    common = os.path.commonpath([os.path.dirname(directory.rstrip("/")) for directory in directories])
    return tuple(os.path.relpath(directory, common) for directory in directories)
