"""Which tests share a process when pytest-xdist runs several: a module is never split, and all modules that use the
Spark session run in one process, so that it is started once.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from xdist.scheduler import LoadScopeScheduling

ROOT = Path(__file__).resolve().parents[2]
_SESSION = re.compile(r"^(?:async )?def \w+\([^)]*\b(?:spark|load)\b", re.MULTILINE)


@cache
def share(path: str) -> str:
    """The name of the process for the tests of a module: `spark` if one of them uses the session."""
    return "spark" if _SESSION.search((ROOT / path).read_text()) else path


class OneSession(LoadScopeScheduling):
    """Schedules modules, the largest first, and those with Spark together."""

    def _split_scope(self, nodeid: str) -> str:
        return share(nodeid.partition("::")[0])
