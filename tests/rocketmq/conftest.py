"""Tests of a module on the compiled loops and on their twins."""

from __future__ import annotations

from tests.support.compiled import either_loops

__all__ = ["either_loops"]
