"""Tests of the compiled loops and their numpy twins: `either_loops` runs a module's tests with both."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from storage_core.compiled import loading


@pytest.fixture(scope="module", params=["never", "always"])
def either_loops(request: pytest.FixtureRequest) -> Iterator[str]:
    """Each of the two in turn, regardless of what this process has handled before."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loading, "process", loading.Process(request.param))
        yield request.param
