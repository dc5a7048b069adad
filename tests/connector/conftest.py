"""Fixtures of the Spark tests: unpacked golden stores, and DataFrames that read them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.golden import archive


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], str]]:
    """Unpacks a golden store once and checks at the end that no test changed it."""
    unpacked: dict[str, tuple[Path, dict[str, tuple[int, int, str]]]] = {}

    def directory(name: str) -> str:
        if name not in unpacked:
            found = archive.unpack(name, tmp_path_factory.mktemp(name))
            unpacked[name] = found, archive.fingerprint(found)
        return str(unpacked[name][0])

    yield directory
    for found, before in unpacked.values():
        assert archive.fingerprint(found) == before, f"reading changed {found}"


@pytest.fixture(scope="session")
def shop(golden: Callable[[str], str]) -> str:
    """The demo store: topics orders, payments and shipments with four queues each, 20,048 messages."""
    return golden("shop-4.9.3")


@pytest.fixture(scope="session")
def load(spark) -> Callable:
    """`load(path, option=…)` returns a DataFrame of `format("mqstore")`."""

    def frame(path: str | list[str] | None, schema: str | None = None, **options: str):
        reader = spark.read.format("mqstore").options(**options)
        reader = reader if schema is None else reader.schema(schema)
        return reader.load() if path is None else reader.load(path)

    return frame
