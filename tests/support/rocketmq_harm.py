"""Ways to damage a store directory: each function damages the directory and returns a description of what it did.

None means that it did not apply. Records in which a function changes bytes (outside their bodies, which have a
checksum) are noted in `Harm.touched`: what a broker serves from them is not a message that anyone sent.
"""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.rocketmq_files import flip_bit, log_files, overwrite, queue_files, records, used_entries

CHECKPOINT_BYTES = 4096


@dataclass
class Harm:
    """What was done to one directory."""

    story: list[str] = field(default_factory=list)
    touched: set[int] = field(default_factory=set)
    """Physical offsets of records with changed bytes outside their bodies."""


Kind = Callable[[Path, random.Random, Harm], str | None]


def torn_tail(store: Path, r: random.Random, harm: Harm) -> str | None:
    """Zeroes the last record except its first bytes."""
    last = list(records(store))[-1:]
    if not last:
        return None
    keep = r.choice((4, 8, 20, 60, last[0].size // 2, last[0].size - 1))
    keep = min(keep, last[0].size - 1)
    overwrite(last[0].path, last[0].position + keep, bytes(last[0].size - keep))
    harm.touched.add(last[0].physical_offset)
    return f"record {last[0].physical_offset} of {last[0].size} bytes keeps {keep}"


def zeroed_tail(store: Path, r: random.Random, harm: Harm) -> str | None:
    """Zeroes the last records of the last file."""
    rows = list(records(store))
    rows = [row for row in rows if row.path == rows[-1].path][-r.choice((1, 2, 9, 40)) :]
    if not rows:
        return None
    stop = rows[-1].position + rows[-1].size
    overwrite(rows[0].path, rows[0].position, bytes(stop - rows[0].position))
    return f"the last {len(rows)} records, from {rows[0].physical_offset}, are zero"


def flipped_body(store: Path, r: random.Random, harm: Harm) -> str | None:
    """Flips one bit of one body."""
    rows = [row for row in records(store) if row.body_size > 0]
    if not rows:
        return None
    row = r.choice(rows)
    flip_bit(row.path, row.body_position + r.randrange(row.body_size), r.randrange(8))
    return f"a body bit of record {row.physical_offset} flipped"


def flipped_anywhere(store: Path, r: random.Random, harm: Harm) -> str | None:
    """Flips one bit of one record outside its body."""
    rows = list(records(store))
    if not rows:
        return None
    row = r.choice(rows)
    physical_offsets = [at for at in range(row.size) if not 0 <= at - row.body_position + row.position < row.body_size]
    at = r.choice(physical_offsets[:88] if r.random() < 0.7 else physical_offsets)
    flip_bit(row.path, row.position + at, r.randrange(8))
    harm.touched.add(row.physical_offset)
    return f"bit in byte {at} of record {row.physical_offset} flipped"


def flipped_entry(store: Path, r: random.Random, harm: Harm) -> str | None:
    """Flips one bit of one queue unit. Leaves expired units alone: changes there would mislead the bisection of 5.x."""
    logs = log_files(store)
    low = int(logs[0].name) if logs else 0
    entries = [
        (path, number)
        for path in queue_files(store)
        for number, phy in enumerate(_physical_offsets(path))
        if phy >= low
    ]
    if not entries:
        return None
    (path, number), at = r.choice(entries), r.randrange(12)
    flip_bit(path, number * 20 + at, r.randrange(8))
    return f"bit in byte {at} of unit {number} of {path.relative_to(store)} flipped"


def _physical_offsets(path: Path) -> list[int]:
    data = path.read_bytes()
    return [struct.unpack_from(">q", data, at * 20)[0] for at in range(used_entries(path))]


def lost_queue_file(store: Path, r: random.Random, harm: Harm) -> str | None:
    """Removes a queue file: the first, a middle or the last one."""
    files = queue_files(store)
    if not files:
        return None
    path = r.choice(files)
    path.unlink()
    return f"{path.relative_to(store)} lost"


def lost_queue_tail(store: Path, r: random.Random, harm: Harm) -> str | None:
    """Zeroes the last units of one queue."""
    folders = sorted({path.parent for path in queue_files(store)})
    files = [path for folder in folders for path in sorted(folder.iterdir())[-1:] if used_entries(path)]
    if not files:
        return None
    path = r.choice(files)
    used = used_entries(path)
    entries = min(used, r.choice((1, 2, 7, 30)))
    overwrite(path, (used - entries) * 20, bytes(entries * 20))
    return f"the last {entries} entries of {path.relative_to(store)} lost"


def lost_queue(store: Path, r: random.Random, harm: Harm) -> str | None:
    """Removes all files of one queue, with or without its folder."""
    folders = sorted({path.parent for path in queue_files(store)})
    if not folders:
        return None
    folder = r.choice(folders)
    shutil.rmtree(folder)
    if r.random() < 0.5:
        folder.mkdir()
    return f"queue {folder.relative_to(store)} lost{', its folder is there' if folder.exists() else ''}"


def lost_queues(store: Path, r: random.Random, harm: Harm) -> str | None:
    """Removes `consumequeue/`."""
    shutil.rmtree(store / "consumequeue", ignore_errors=True)
    return "consumequeue/ lost"


def empty_queue_folder(store: Path, r: random.Random, harm: Harm) -> str | None:
    """Adds a queue folder without a file."""
    (store / "consumequeue" / "empty-topic" / "0").mkdir(parents=True, exist_ok=True)
    return "an empty queue folder"


def zero_queue_file(store: Path, r: random.Random, harm: Harm) -> str | None:
    """Adds an all-zero file to a queue whose last file is full, or to an empty queue."""
    files = queue_files(store)
    if not files:
        return None
    size = files[0].stat().st_size
    last = [sorted(folder.iterdir())[-1] for folder in sorted({path.parent for path in files})]
    full = [path for path in last if used_entries(path) * 20 == size]
    if full and r.random() < 0.7:
        target = full[0].parent / f"{int(full[0].name) + size:020d}"
    else:
        target = store / "consumequeue" / "zero-topic" / "0" / f"{0:020d}"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(bytes(size))
    return f"an all-zero queue file {target.relative_to(store)}"


def zero_length_file(store: Path, r: random.Random, harm: Harm) -> str | None:
    """Adds a file of length zero that sorts last, as a crash between creating and sizing it leaves. 4.9.3 refuses to
    load it.
    """
    files = queue_files(store) if r.random() < 0.6 else log_files(store)
    if not files:
        return None
    path = sorted(r.choice(files).parent.iterdir())[-1]
    target = path.parent / f"{int(path.name) + path.stat().st_size:020d}"
    target.touch()
    return f"a zero-length file {target.relative_to(store)}"


def lost_checkpoint(store: Path, r: random.Random, harm: Harm) -> str | None:
    """Removes, zeroes or shortens the checkpoint (4.9.3 and 5.3.3 map it at its full length)."""
    path = store / "checkpoint"
    kind = r.choice(("lost", "zero", "short"))
    if kind == "lost":
        path.unlink(missing_ok=True)
    else:
        path.write_bytes(bytes(CHECKPOINT_BYTES if kind == "zero" else r.choice((0, 5, 24))))
    return f"checkpoint {kind}"


def abort_there(store: Path, r: random.Random, harm: Harm) -> str | None:
    """Adds `abort`, as after a crash."""
    (store / "abort").touch()
    return "abort added"


def abort_gone(store: Path, r: random.Random, harm: Harm) -> str | None:
    """Removes `abort`, as after a clean stop."""
    (store / "abort").unlink(missing_ok=True)
    return "abort removed"


def lost_log_file(store: Path, r: random.Random, harm: Harm) -> str | None:
    """Removes a log file: a middle one, the first or the last."""
    files = log_files(store)
    if len(files) < 2:
        return None
    which = r.choice(("middle", "middle", "first", "last"))
    number = {"middle": r.randrange(len(files)), "first": 0, "last": len(files) - 1}[which]
    files[number].unlink()
    return f"log file {files[number].name} ({number + 1} of {len(files)}) lost"


def extra_log_file(store: Path, r: random.Random, harm: Harm) -> str | None:
    """Adds a preallocated, all-zero file after the last one."""
    files = log_files(store)
    if not files:
        return None
    size = files[-1].stat().st_size
    target = files[-1].parent / f"{int(files[-1].name) + size:020d}"
    target.write_bytes(bytes(size))
    return f"an all-zero log file {target.name}"


def lost_index(store: Path, r: random.Random, harm: Harm) -> str | None:
    """Removes the index files, or writes noise into one."""
    files = sorted((store / "index").glob("*"))
    if not files:
        return None
    if r.random() < 0.5:
        shutil.rmtree(store / "index")
        return "index/ lost"
    path = r.choice(files)
    overwrite(path, 0, r.randbytes(r.choice((40, path.stat().st_size))))
    return f"noise in index file {path.name}"


KINDS: tuple[Kind, ...] = (
    torn_tail, torn_tail, zeroed_tail, flipped_body, flipped_anywhere, flipped_entry, lost_queue_file, lost_queue_tail,
    lost_queue_tail, lost_queue, lost_queues, empty_queue_folder, zero_queue_file, zero_length_file, lost_checkpoint,
    abort_there, abort_there, abort_gone, lost_log_file, extra_log_file, lost_index,
)  # fmt: skip


def harm(store: Path, r: random.Random) -> Harm:
    """Applies one to three kinds of damage to a directory."""
    done = Harm()
    for kind in r.sample(KINDS, r.choice((1, 1, 2, 3))):
        detail = kind(store, r, done)
        if detail:
            done.story.append(detail)
    return done
