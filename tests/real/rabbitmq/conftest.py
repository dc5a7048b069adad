"""Fixtures for tests of real nodes."""

from __future__ import annotations

import pytest

from storage_core.formats.rabbitmq.message import basic_message
from storage_core.formats.rabbitmq.message.basic_message import Message, decode


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The terms that are decoded one at a time."""
    decoded: list[bytes] = []

    def counted(term: bytes, *more: int) -> Message:
        decoded.append(term)
        return decode(term, *more)

    monkeypatch.setattr(basic_message, "decode", counted)
    return decoded
