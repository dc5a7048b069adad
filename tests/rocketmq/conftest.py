"""Tests of a module with the compiled loops and with their twins."""

from __future__ import annotations

from tests.support.compiled import either_loops

__all__ = ["either_loops"]
