"""Spans of many files read into one buffer, whatever the gaps, and files that are missing or shorter than planned."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from storage_core.errors import DataLossError
from storage_core.files import system
from storage_core.rabbitmq.disk.span_reader import LARGEST_COPIED_GAP, LARGEST_GAP, SpanReader, _runs
from tests.faults import short_transfers

GAPS = (0, 1, 700, LARGEST_COPIED_GAP, LARGEST_COPIED_GAP + 1, LARGEST_GAP, LARGEST_GAP + 1, 70_000)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, bytes]:
    """Three files below `tmp_path`, with their contents."""
    contents = {f"{number}.rdq": random.Random(number).randbytes(400_000) for number in range(3)}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    return contents


def drawn_spans(seed: int) -> list[tuple[int, int, int]]:
    """Spans (file, start, stop) in any order, some repeated or overlapping, with gaps of every kind between them."""
    chance = random.Random(seed)
    spans = []
    for file in range(3):
        at = chance.randrange(1000)
        while (stop := at + chance.choice((1, 40, 5000))) < 400_000:
            spans.append((file, at, stop))
            at = max(0, stop + chance.choice((*GAPS, -20)))
    spans += chance.sample(spans, 5)
    chance.shuffle(spans)
    return spans


def columns(spans: list[tuple[int, int, int]]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    files, starts, stops = np.array(spans, np.int64).T
    return files, starts, stops


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("short", [False, True])
def test_each_span_is_found_in_the_buffer(tmp_path: Path, files: dict[str, bytes], seed: int, short: bool) -> None:
    spans = drawn_spans(seed)
    reader = SpanReader(str(tmp_path), list(files))
    with short_transfers(seed) if short else short_transfers(seed, most=1 << 30):
        buffer, found = reader.load(*columns(spans))
    for (file, start, stop), at in zip(spans, found.tolist(), strict=True):
        assert buffer[at : at + stop - start].tobytes() == files[f"{file}.rdq"][start:stop]
    reader.close()


@pytest.mark.parametrize("seed", range(6))
def test_long_runs_in_any_direction_are_read_as_one(tmp_path: Path, files: dict[str, bytes], seed: int) -> None:
    """Hundreds of spans of each file: ascending, descending, or descending within ascending blocks; some overlap."""
    chance = random.Random(seed)
    spans = []
    for file, block in zip(chance.sample(range(3), 3), (1, 1000, 200), strict=True):
        own, at = [], chance.randrange(1000)
        while (stop := at + chance.randrange(200, 900)) < 400_000:
            own.append((file, at, stop))
            at = max(0, stop + chance.choice((0, 0, 30, 700, -20)))
        spans += [one for first in range(0, len(own), block) for one in reversed(own[first : first + block])]
    reader = SpanReader(str(tmp_path), list(files))
    buffer, found = reader.load(*columns(spans))
    for (file, start, stop), at in zip(spans, found.tolist(), strict=True):
        assert buffer[at : at + stop - start].tobytes() == files[f"{file}.rdq"][start:stop]
    runs = _runs(*columns(spans), LARGEST_COPIED_GAP)
    bounds = [[int(number) for number in column] for column in runs[:3]]
    assert list(zip(*bounds, strict=True)) == sorted(zip(*bounds, strict=True))
    assert len(bounds[0]) <= 3 + 400_000 // (200 * 200)
    assert len(buffer) <= 3 * 400_000 + len(bounds[0]) * 1000
    reader.close()


def test_far_spans_are_read_one_by_one_and_asked_for_in_one_piece(
    tmp_path: Path, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    requested, read_soon = [], system.read_soon
    monkeypatch.setattr(system, "read_soon", lambda *args: (requested.append(args[1:]), read_soon(*args)))
    spans = [(0, at, at + 5000) for at in range(0, 200_000, 20_000)] + [(1, 0, 10), (2, 0, 10), (2, 300_000, 300_010)]
    reader = SpanReader(str(tmp_path), list(files))
    buffer, found = reader.load(*columns(spans))
    assert (len(buffer), requested) == (50_030, [(0, 185_000)])
    assert found.tolist() == [*range(0, 50_001, 5000), 50_010, 50_020]
    reader.close()


def test_a_file_that_vanished_is_named_with_the_first_position(tmp_path: Path, files: dict[str, bytes]) -> None:
    (tmp_path / "1.rdq").unlink()
    spans = [(0, 0, 10), (1, 30_000, 30_010), (1, 200, 210), (1, 10_000, 10_010)]
    with pytest.raises(DataLossError, match=r"1\.rdq at 200: the file vanished while"):
        SpanReader(str(tmp_path), list(files)).load(*columns(spans))


@pytest.mark.parametrize("short", [False, True])
def test_a_file_that_shrank_is_named_with_its_end(tmp_path: Path, files: dict[str, bytes], short: bool) -> None:
    with open(tmp_path / "1.rdq", "ab") as file:
        file.truncate(20_005)
    spans = [(0, 0, 10), (1, 0, 10), (1, 10_000, 10_010), (1, 20_000, 20_010), (1, 90_000, 90_010)]
    with (
        short_transfers(1, most=3) if short else short_transfers(1, most=1 << 30),
        pytest.raises(DataLossError, match=r"1\.rdq at 20005: the file shrank while"),
    ):
        SpanReader(str(tmp_path), list(files)).load(*columns(spans))
