"""Random stores of the real 4.9.3 and 5.3.3, also crashed and damaged: mqstore's rows equal what the real store serves.

`MQSTORE_STORES` sets how many, `MQSTORE_SEED` the first seed, `MQSTORE_KEEP` the folder that keeps failing stores.
A failure prints its seed; `MQSTORE_STORES=1 MQSTORE_SEED=<seed>` repeats it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.real.case import Case, prepare

pytestmark = pytest.mark.real

FIRST_SEED = int(os.environ.get("MQSTORE_SEED", "20261121"))
SEEDS = range(FIRST_SEED, FIRST_SEED + int(os.environ.get("MQSTORE_STORES", "10")))
AHEAD = 3


class Kitchen:
    """Prepares the cases of the next seeds in two threads while a test compares: the real stores run concurrently."""

    def __init__(self, work: Path) -> None:
        self._work, self._pool = work, ThreadPoolExecutor(2)
        self._waiting: dict[int, Future[Case]] = {}

    def case(self, seed: int) -> Case:
        """The prepared case of a seed."""
        for ahead in range(seed, min(seed + AHEAD, SEEDS.stop)):
            if ahead not in self._waiting:
                self._waiting[ahead] = self._pool.submit(prepare, ahead, self._work / str(ahead))
        return self._waiting.pop(seed).result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="module")
def kitchen() -> Iterator[Kitchen]:
    work = Path(os.environ.get("MQSTORE_KEEP") or tempfile.mkdtemp(prefix="mqstore-real-"))
    work.mkdir(parents=True, exist_ok=True)
    kitchen = Kitchen(work)
    yield kitchen
    kitchen.close()
    if not any(work.iterdir()):
        work.rmdir()


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_equal_what_the_real_store_serves(kitchen: Kitchen, seed: int) -> None:
    case = kitchen.case(seed)
    print(case.explain())

    problems = case.problems()

    assert not problems, f"{case.explain()}\n" + "\n".join(problems)
    shutil.rmtree(case.made.directory.parent)
