"""Rows as values that JSON can represent.

Source: interface.md 38: names of the native columns, times as ISO 8601 UTC with milliseconds.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa


def _parsed(body: bytes) -> Any:
    """The value of a body that is a JSON object, list, number or boolean, and stays valid JSON; otherwise its text."""
    text = body.decode("utf-8", "replace")
    try:
        value = json.loads(body, parse_constant=_not_json, parse_float=_finite)
        if b"\\u" in body:
            json.dumps(value, ensure_ascii=False).encode()  # half a surrogate pair is no text
    except (ValueError, RecursionError):
        return text
    return text if value is None or isinstance(value, str) else value


def _not_json(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is too large")
    return value


BODIES: dict[str, Callable[[bytes], Any]] = {
    "text": lambda body: body.decode("utf-8", "replace"),
    "json": _parsed,
    "hex": bytes.hex,
    "base64": lambda body: base64.b64encode(body).decode(),
}
"""How a body is shown. Other binary columns are always base64."""
BODY_COLUMNS = ("body", "value")


def json_rows(batch: pa.RecordBatch, body: str = "text") -> Iterable[dict[str, Any]]:
    """The rows of a batch as values that JSON can represent."""
    names = batch.schema.names
    columns = [_values(field, batch.column(number), body) for number, field in enumerate(batch.schema)]
    return (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))


def _values(field: pa.Field, column: pa.Array, body: str) -> list[Any]:
    if pa.types.is_timestamp(field.type):
        return _times(column)
    values = column.to_pylist()
    if pa.types.is_binary(field.type):
        shown = BODIES[body if field.name in BODY_COLUMNS else "base64"]
        return [None if value is None else shown(value) for value in values]
    if pa.types.is_map(field.type):
        return [None if value is None else dict(value) for value in values]
    return list(values)


def _times(column: pa.Array) -> list[str | None]:
    """ISO 8601 texts, made by numpy: a timestamp property may exceed the year 9999, where Python's range ends."""
    micros = column.cast(pa.timestamp("us")).cast(pa.int64())
    texts = np.datetime_as_string(micros.fill_null(0).to_numpy().astype("M8[us]"), unit="ms")
    present = column.is_valid().to_pylist()
    return [f"{text}Z" if there else None for text, there in zip(texts.tolist(), present, strict=True)]
