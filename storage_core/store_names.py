"""The names by which the rows of several stores are told apart."""

from __future__ import annotations

import os
from collections.abc import Sequence


def store_names(directories: Sequence[str], kinds: Sequence[str] = ()) -> tuple[str, ...]:
    """Values of the column `store`: the last part of a path; of several stores the path below their common folder.

    `kinds` are their types of queues: stores of one type are named as if there were no other, where that tells all
    apart, so that quorum queues on a node do not rename its virtual hosts.
    """
    if len(set(kinds)) > 1:
        told = list(zip(directories, kinds, strict=True))
        alike = {kind: iter(store_names([path for path, own in told if own == kind])) for kind in kinds}
        names = tuple(next(alike[kind]) for kind in kinds)
        if len(set(names)) == len(names):
            return names
    if len(directories) == 1:
        return (os.path.basename(directories[0].rstrip("/")) or "/",)
    common = os.path.commonpath([os.path.dirname(directory.rstrip("/")) for directory in directories])
    return tuple(os.path.relpath(directory, common) for directory in directories)
