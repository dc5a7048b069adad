"""Which tests share a process where pytest-xdist runs them in several: a module is not divided, and all that use the
Spark session go to one process, so that it is started once.
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
    """The name of the process that the tests of a module need: `spark` where one asks for the session."""
    return "spark" if _SESSION.search((ROOT / path).read_text()) else path


class OneSession(LoadScopeScheduling):
    """Modules, the largest first; those with Spark together."""

    def _split_scope(self, nodeid: str) -> str:
        return share(nodeid.partition("::")[0])
