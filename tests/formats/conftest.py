"""Random tests have no deadline: on a busy machine the first example may wait for its turn."""

from __future__ import annotations

from hypothesis import settings

from tests.support.compiled import either_loops

__all__ = ["either_loops"]

settings.register_profile("mqstore", deadline=None)
settings.load_profile("mqstore")
