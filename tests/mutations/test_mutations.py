"""Whatever the files of a store contain, a call returns what its bytes state or raises a one-line mqstore error.

It does so soon and in little memory, never with a traceback, a hang or a dead interpreter.

`MQSTORE_MUTATIONS` sets the number of damaged stores (30; 2,000 for `make test-real-full`), `MQSTORE_SEED` selects
them. Quorum queues get half as many.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.mutations.harms import OF_BYTES, OF_FILES
from tests.support.sampling import SEED, WHOLE

pytestmark = pytest.mark.sampled

COUNT = int(os.environ.get("MQSTORE_MUTATIONS", "2000" if WHOLE else "30"))
PIECE = 500
"""Cases per process."""
ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(7200)
@pytest.mark.parametrize(
    ("kind", "count", "least"), [([], COUNT, 5), (["--quorum"], -(-COUNT // 2), 3)], ids=["stores", "quorum queues"]
)
def test_harmed_stores(kind: list[str], count: int, least: int, tmp_path: Path) -> None:
    """`least`: more calls than this return per case on average; some views belong to the other engine."""
    wrong, ends, harms = [], Counter[str](), Counter[str]()
    for first in range(0, count, PIECE):
        call = [sys.executable, "-m", "tests.mutations.runner", "--seed", str(SEED), "--first", str(first), *kind]
        call += ["--count", str(min(PIECE, count - first))]
        done = subprocess.run(
            call, cwd=ROOT, env={**os.environ, "TMPDIR": str(tmp_path)}, capture_output=True, text=True, check=False
        )
        assert done.stdout, done.stderr[-3000:]
        *found, last = map(json.loads, done.stdout.splitlines())
        assert "cases" in last, ("the process ended", done.returncode, done.stderr[-3000:])
        wrong += found
        ends.update(last["ends"])
        harms.update(last["harms"])
    print(f"{count} harmed stores: {dict(ends)}")
    assert not wrong, json.dumps(wrong[:3], indent=1)
    assert ends["answered"] > least * count
    assert ends["CorruptionError"] or count < 20
    assert set(harms) <= {kind.__name__ for kind in (*OF_BYTES, *OF_FILES)}
    assert len(harms) > 5
