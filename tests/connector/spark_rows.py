"""Rows of a DataFrame in the form of `tests.reference.served`, and the message a user reads when a query fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import PySparkException

from tests.reference.served import Row, table_rows


def rows(frame: Any) -> list[Row]:
    """All rows, times as epoch milliseconds and maps as lists of pairs."""
    return table_rows(frame.toArrow())


def failure(action: Callable[[], Any]) -> str:
    """The exception's message: one mqstore line inside Spark's text, without any stack trace."""
    with pytest.raises(PySparkException) as caught:
        action()
    text = str(caught.value)
    assert "Traceback" not in text
    assert "\tat " not in text
    assert 'File "' not in text
    ours = [line for line in text.splitlines() if "mqstore: " in line]
    assert len(ours) == 1, text
    return ours[0].split("mqstore: ", 1)[1].removesuffix(" SQLSTATE: 38000")
