"""Tests of the formats, each with the numpy code and with the compiled loops."""

from tests.support.compiled import either_loops

__all__ = ["either_loops"]
