"""Writers killed by SIGKILL at random moments: each job is whole or absent, and the next writer succeeds."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.rocketmq_writes import GEOMETRY, bodies, rows, write
from tests.support.sampling import SEED, WHOLE

pytestmark = pytest.mark.sampled

ROWS = 2000
WRITER = f"""
import sys
from pathlib import Path
from tests.support.rocketmq_writes import rows, write
for job in range(int(sys.argv[2]), int(sys.argv[2]) + 50):
    write(Path(sys.argv[1]), rows({ROWS}, job * {ROWS}))
    print(job, flush=True)
"""


@pytest.mark.timeout(600)
def test_killed_writers_leave_whole_jobs(tmp_path: Path) -> None:
    r = random.Random(SEED)
    directory, job = tmp_path / "store", 1
    write(directory, rows(ROWS), **GEOMETRY | {"commitLogFileSize": 1 << 20, "consumeQueueFileEntries": 500})
    for _ in range(6 if WHOLE else 3):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(directory), str(job)], stdout=subprocess.PIPE, text=True,
            cwd=Path(__file__).parents[2],
        )  # fmt: skip
        assert process.stdout is not None
        done = int(process.stdout.readline())
        time.sleep(r.random() * 0.6)
        process.kill()
        rest = process.stdout.read().split()
        process.wait()
        process.stdout.close()
        last_done = int(rest[-1]) if rest else done

        found = {int(row[3].split()[1]) for row in bodies(directory)}
        jobs = {number // ROWS for number in found}

        assert len(found) == ROWS * len(jobs), "half a job"
        assert set(range(last_done + 1)) <= jobs <= set(range(last_done + 2)), "a job that was told done is there"
        write(directory, rows(1, (job := last_done + 2) * ROWS))
        now = bodies(directory)
        assert {int(row[3].split()[1]) for row in now} >= found
        assert len(now) in (len(found) + 1, len(found) + 1 + ROWS), "the redo finishes a committed job, once"
        write(directory, rows(ROWS - 1, job * ROWS + 1))
        if len(now) == len(found) + 1 and last_done + 1 not in jobs:
            write(directory, rows(ROWS, (last_done + 1) * ROWS))
        job += 1
    assert len(bodies(directory)) == ROWS * job
