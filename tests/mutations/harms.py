"""Ways to damage the files of a store: each function damages a file and returns a description of the damage.

They know no format, except where lengths may be stored: readers allocate memory by lengths.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

LENGTHS = (2**31 - 1, -1, 0, 2**31 - 92, 2**30, 1, 90, -(2**31))
"""Values that a length is set to."""
PAST_THE_END = 64
"""Bytes after the last one in use that may be damaged as well: the rest of most files is empty."""
READ_LIMIT = 4 << 20


def start_of(path: Path) -> bytes:
    """The part of a file that may be damaged."""
    with path.open("rb") as file:
        return file.read(READ_LIMIT)


def in_use(path: Path) -> int:
    """The length of a file up to its last non-zero byte, plus a little."""
    data = start_of(path)
    return max(1, min(len(data.rstrip(b"\0")) + PAST_THE_END, path.stat().st_size))


def put(path: Path, position: int, data: bytes) -> None:
    """Writes into a file without changing its length."""
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data[: max(0, path.stat().st_size - position)])


def flipped_bits(path: Path, r: random.Random, others: list[Path]) -> str:
    count, size = r.choice((1, 1, 1, 8, 64)), in_use(path)
    data = start_of(path)[:size]
    for _ in range(count):
        at = r.randrange(size)
        put(path, at, bytes([data[at] ^ 1 << r.randrange(8)]) if data else b"")
    return f"{count} bits flipped below {size}"


def zeroed_range(path: Path, r: random.Random, others: list[Path]) -> str:
    start, size = r.randrange(in_use(path)), r.choice((1, 4, 8, 20, 100, 512, 4096))
    put(path, start, bytes(size))
    return f"{size} zeros at {start}"


def random_bytes(path: Path, r: random.Random, others: list[Path]) -> str:
    start, size = r.randrange(in_use(path)), r.choice((1, 4, 8, 20, 100, 512, 4096))
    put(path, start, r.randbytes(size))
    return f"{size} random bytes at {start}"


def wrong_length(path: Path, r: random.Random, others: list[Path]) -> str:
    """Turns a number of two, four or eight bytes, big or little-endian, into an impossible length."""
    data, value = start_of(path)[: in_use(path)], r.choice(LENGTHS)
    form = r.choice((">i", ">i", ">i", ">q", ">q", ">h", "<i", "<q"))
    width = struct.calcsize(form)
    # Where a small number is stored now: likely a length, a count or an offset.
    likely = [at for at in range(0, len(data) - width, r.choice((1, 1, 2, 4)))
              if 0 < struct.unpack_from(form, data, at)[0] < 5000]  # fmt: skip
    at = r.choice(likely[:3000]) if likely else r.randrange(len(data) + 1)
    value = max(-(2**15), min(value, 2**15 - 1)) if width == 2 else value
    put(path, at, struct.pack(form, value))
    return f"{value} as {form} at {at}"


def cut(path: Path, r: random.Random, others: list[Path]) -> str:
    size = r.choice((0, r.randrange(in_use(path)), r.randrange(path.stat().st_size + 1), path.stat().st_size - 1))
    os.truncate(path, max(size, 0))
    return f"cut to {size}"


def garbage_at_the_end(path: Path, r: random.Random, others: list[Path]) -> str:
    size = r.choice((1, 20, 91, 4096, 5000))
    with path.open("ab") as file:
        file.write(r.choice((r.randbytes(size), bytes(size))))
    return f"{size} bytes appended"


def doubled_block(path: Path, r: random.Random, others: list[Path]) -> str:
    size = r.choice((20, 34, 100, 512, 4096))
    start, target = r.randrange(in_use(path)), r.randrange(in_use(path))
    with path.open("rb") as file:
        file.seek(start)
        data = file.read(size)
    put(path, target, data)
    return f"{len(data)} bytes at {start} copied to {target}"


def swapped(path: Path, r: random.Random, others: list[Path]) -> str:
    """Swaps the file with another one, preferably of the same kind."""
    same = [other for other in others if other != path and other.parent.name == path.parent.name]
    other = r.choice(same if same and r.random() < 0.7 else others)
    aside = path.with_name(path.name + ".aside")
    path.rename(aside)
    if other != path:
        other.rename(path)
    aside.rename(other)
    return f"swapped with {other.parent.name}/{other.name}"


def removed(path: Path, r: random.Random, others: list[Path]) -> str:
    path.unlink()
    return "removed"


def made_a_folder(path: Path, r: random.Random, others: list[Path]) -> str:
    path.unlink()
    path.mkdir()
    if r.random() < 0.5:
        (path / f"{0:020d}").write_bytes(r.randbytes(50))
    return "a folder in its place"


def made_a_link(path: Path, r: random.Random, others: list[Path]) -> str:
    path.unlink()
    path.symlink_to(r.choice((path.name, "gone", "..")))
    return f"a link to {os.readlink(path)} in its place"


Kind = Callable[[Path, random.Random, list[Path]], str]
OF_BYTES: tuple[Kind, ...] = (
    flipped_bits, flipped_bits, zeroed_range, random_bytes, wrong_length, wrong_length, wrong_length, cut,
    garbage_at_the_end, doubled_block,
)  # fmt: skip
OF_FILES: tuple[Kind, ...] = (swapped, removed, made_a_folder, made_a_link)


@dataclass
class Harmed:
    """What was done to the files of one store; `paths` are relative."""

    story: list[str] = field(default_factory=list)
    paths: set[str] = field(default_factory=set)


@contextmanager
def harmed(store: Path, original: Path, r: random.Random) -> Iterator[Harmed]:
    """Damages one to five files of the store within the block; afterwards restores them from `original`."""
    files = sorted(path for path in store.rglob("*") if path.is_file())
    done = Harmed()
    for path in _chosen(store, files, r):
        if not path.is_file():
            continue  # a swap took it
        kind = r.choice(OF_BYTES if r.random() < 0.85 else OF_FILES)
        if not path.stat().st_size and kind in OF_BYTES:
            kind = garbage_at_the_end
        others = [other for other in files if other.is_file()]
        before = {other: other.stat().st_ino for other in others} if kind is swapped else {}
        detail = kind(path, r, others)
        changed = [path, *(other for other, number in before.items() if other.stat().st_ino != number)]
        done.paths |= {str(each.relative_to(store)) for each in changed}
        done.story.append(f"{path.relative_to(store)}: {kind.__name__}: {detail}")
    try:
        yield done
    finally:
        for name in done.paths:
            _restore(original / name, store / name)


def _chosen(store: Path, files: list[Path], r: random.Random) -> list[Path]:
    """Chooses a kind first, then a file of it: there is one checkpoint, but there are many queue files."""
    kinds: dict[str, list[Path]] = {}
    for path in files:
        kinds.setdefault(path.relative_to(store).parts[0] + path.suffix, []).append(path)
    count = r.choice((1, 1, 1, 1, 2, 5))
    return list(dict.fromkeys(r.choice(kinds[r.choice(sorted(kinds))]) for _ in range(count)))


def _restore(original: Path, path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    copied(original, path)


def copied(source: Path, target: Path) -> None:
    """Copies a file or a folder, preserving holes and timestamps."""
    subprocess.run(["cp", "-a", "--sparse=always", str(source), str(target)], check=True)
