"""Every change of a store, interrupted anywhere: it is whole or absent, errors are one line, the next run succeeds.

`make test` tries a sample of the points, `make test-real-full` every one; a run prints how many.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crashes.work import Trial
from tests.crashes.works import WORKS
from tests.support.sampling import SEED

pytestmark = pytest.mark.sampled

STOPS, LOSSES, ERRORS = 2, 4, 2


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", WORKS)
def test_whole_or_absent(name: str, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    trial = Trial(WORKS[name], tmp_path / "trial", SEED)
    trial.stops(STOPS)
    trial.losses(LOSSES)
    trial.errors(ERRORS)
    trial.short_transfers()
    record_property("crash points", dict(trial.points))
    assert len(trial.points) == 4
