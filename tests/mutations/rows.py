"""Whether the rows of a harmed store are rows of it: those of the unharmed store, or of bytes that really stand there.

Of a RocketMQ store also whether each stands where the slow twin of both stock stores serves it.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

from storage_core import open_store
from storage_core.formats.rabbitmq.amqp import properties
from storage_core.formats.rabbitmq.message import message_container
from storage_core.formats.rocketmq.message import Flaw
from storage_core.store import Mode, Scan, ScanRequest
from tests.golden import archive
from tests.rabbitmq import golden
from tests.reference.rocketmq_record import NATIVE_COLUMNS, Damaged, Log, NotARecord
from tests.reference.rocketmq_recovery import Recovered
from tests.reference.served import AS_BROKER, Row, differences, in_partitions, place, read
from tests.support.rocketmq_files import log_files, queue_files

RECOVERY = {"493": "4.9", "533": "5.x"}
OF_THE_QUEUE = ("topic", "queueId", "queueOffset", "store")
CONTENT = tuple(name for name in NATIVE_COLUMNS if name not in OF_THE_QUEUE)
FEW = 4
FRAME = 131_064
"""Bytes of a body that a client sends at once, and a node stores as one binary."""
MOST_HEAD = 70_000
DECODED = b"P_basic"
SPELLED_ANEW = message_container.LEGACY.encode(), DECODED
"""In messages of quorum queues whose properties do not stand there as they are delivered."""
HEADERS_HEAD = 6
"""Bytes of a property list before its first header: two of flags, four of a length."""


class RocketRows:
    """What the unharmed RocketMQ store `name` serves, to compare its harmed copies with."""

    def __init__(self, name: str, original: Path) -> None:
        self._settings = archive.info(name)["settings"]
        self._before = Log(original / "commitlog")
        self.keys = sorted({row["key"] for row in read(original, in_partitions(1, **AS_BROKER)) if row["key"]})

    def problems(self, store: Path, version: str) -> list[str]:
        """Rows of a harmed copy that are none of it, a line each."""
        log = Log(store / "commitlog")
        lines = []
        for scan, columns in ((Scan.QUEUES, CONTENT), (Scan.LOG, tuple(n for n in NATIVE_COLUMNS if n != "store"))):
            request = in_partitions(1, scan=scan, mode=Mode.PERMISSIVE, columns=(*columns, "corruption"))
            for row in read(store, request):
                if row.pop("corruption") is None:
                    lines += self._invented(row, log)
        return lines[:FEW] + self._misplaced(store, version, log)

    def _invented(self, row: Row, log: Log) -> list[str]:
        """Nothing for a row whose record stands in the log with the right checksum."""
        at = row["physicalOffset"]
        try:
            fields, told = log.fields(at), log.row(at)
        except (NotARecord, Damaged) as error:
            return [f"a row at {at}: {type(error).__name__}"]
        # An empty body has no checksum that anyone looks at.
        if fields["storedBody"] and zlib.crc32(fields["storedBody"]) & 0x7FFFFFFF != fields["bodyCrc"]:
            return [f"a row at {at} whose checksum is wrong"]
        return [f"a row at {at}: {name} is {row[name]!r:.60}, {told[name]!r:.60} stands there"
                for name in row if row[name] != told[name]]  # fmt: skip

    def _misplaced(self, store: Path, version: str, log: Log) -> list[str]:
        """Where the twin serves other messages; records with changed bytes are no part of it."""
        if "mappedFileSizeCommitLog" not in self._settings:  # gigabytes
            return []
        sizes = self._settings["mappedFileSizeCommitLog"], self._settings["mappedFileSizeConsumeQueue"]
        if not _loads(store, *sizes):
            return []
        try:
            twin = Recovered(store, version, *sizes)
            served = list(twin.served())
        except TimeoutError:  # 4.9.3 never starts
            return []
        strict, loose = [], set()
        for topic, queue_id, queue_offset, at, size in served:
            row = self._unchanged(log, at)
            if row is None or row["size"] != size:
                loose.add((topic, queue_id, queue_offset))
            else:
                strict.append({**row, "topic": topic, "queueId": queue_id, "queueOffset": queue_offset})
        wanted = in_partitions(1, columns=(*OF_THE_QUEUE[:3], "corruption"), mode=Mode.PERMISSIVE, verify_crc=False)
        told = read(store, wanted, recovery=RECOVERY[version])
        # Messages in the wrong queue, or at a wrong place of it, are damaged (interface.md 41).
        strange = {place(row) for row in told if Flaw.QUEUE.value in (row["corruption"] or "")}
        loose |= strange
        strict = [row for row in strict if place(row) not in strange]
        rows = read(store, in_partitions(2, **AS_BROKER), recovery=RECOVERY[version])
        return differences(strict, [row for row in rows if place(row) not in loose], FEW)

    def _unchanged(self, log: Log, at: int) -> Row | None:
        """The row at an address where the unharmed store has the same record."""
        try:
            return log.row(at) if log.fields(at) == self._before.fields(at) else None
        except (NotARecord, Damaged):
            return None


def _loads(store: Path, log_size: int, queue_size: int) -> bool:
    """Whether a stock store looks further than at the names and lengths of the files."""
    paths = {path for name in ("commitlog", "consumequeue") for path in (store / name).rglob("*") if not path.is_dir()}
    sizes = dict.fromkeys(log_files(store), log_size) | dict.fromkeys(queue_files(store), -(-queue_size // 20) * 20)
    return sizes.keys() == paths and all(path.exists() and path.stat().st_size == sizes[path] for path in paths)


class RabbitRows:
    """What the unharmed RabbitMQ store serves, to compare its harmed copies with."""

    SAME = ("queue", "sequenceId", "body", "rawProperties", "exchange", "guid", "persistent", "size")

    def __init__(self, original: Path) -> None:
        rows = self._rows(original)
        self._names = {row["queue"] for row in rows}
        self._known = {self._key(row, named) for row in rows for named in (True, False)}
        self.keys: list[str] = []

    def _rows(self, store: Path) -> list[dict[str, Any]]:
        with open_store(str(store)) as opened:
            columns = (*self.SAME, "file", "position", "acked", "corruption")
            plan = opened.snapshot().plan(ScanRequest(columns=columns, mode=Mode.PERMISSIVE, include_acked=True))
            rows = [row for piece in plan for batch in piece.read() for row in batch.to_pylist()]
        # The body of a message that was acknowledged may be gone.
        return [row for row in rows if row["corruption"] is None and not (row["acked"] and row["body"] is None)]

    def _key(self, row: dict[str, Any], named: bool) -> tuple[Any, ...]:
        return tuple(row[name] for name in self.SAME if named or name != "queue")

    def problems(self, store: Path, version: str) -> list[str]:
        """Rows of a harmed copy that are none of it, a line each."""
        del version
        rows, lines = self._rows(store), []
        seen = [(row["queue"], row["sequenceId"], row["guid"]) for row in rows]
        if len(set(seen)) < len(seen):
            lines.append(f"{len(seen) - len(set(seen))} messages twice")
        files: dict[str, bytes] = {}
        for row in rows:
            # A queue whose name is lost goes by its folder's.
            if self._key(row, row["queue"] in self._names) in self._known:
                continue
            path = store / row["file"]
            data = files.setdefault(row["file"], path.read_bytes() if path.is_file() else b"")
            there, body = data[row["position"] :], row["body"]
            frames = [body[at : at + FRAME] for at in range(0, len(body), FRAME)]
            head, stored = there[:MOST_HEAD], there[: row["size"] + MOST_HEAD]
            if row["rawProperties"] not in head or not all(frame in stored for frame in frames):
                lines.append(f"{row['queue']} {row['sequenceId']} is not at {row['position']} of {row['file']}")
        return lines[:FEW]


class QuorumRows:
    """What the unharmed quorum queues hold or held, to compare their harmed copies with."""

    SAME = ("queue", "raftIndex", "raftTerm", "body", "rawProperties", "exchange", "routingKeys", "size")

    def __init__(self, original: Path) -> None:
        rows = self._rows(original)
        self._known = {self._key(row) for row in rows}
        self.keys: list[str] = []

    def _rows(self, store: Path) -> list[dict[str, Any]]:
        with open_store(str(store)) as opened:
            columns = (*self.SAME, "sequenceId", "file", "position", "corruption")
            plan = opened.snapshot().plan(ScanRequest(columns=columns, mode=Mode.PERMISSIVE))
            rows = [row for piece in plan for batch in piece.read() for row in batch.to_pylist()]
        return [row for row in rows if row["corruption"] is None]

    def _key(self, row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(tuple(row[name]) if name == "routingKeys" else row[name] for name in self.SAME)

    def problems(self, store: Path, version: str) -> list[str]:
        """Rows of a harmed copy that are none of it, a line each: with a checksum set to 0 a changed one is right."""
        del version
        rows, lines = self._rows(store), []
        seen = [(row["queue"], row["raftIndex"]) for row in rows]
        if len(set(seen)) < len(seen):
            lines.append(f"{len(seen) - len(set(seen))} messages twice")
        for row in rows:
            if self._key(row) in self._known:
                continue
            there = (store / row["file"]).read_bytes()[row["position"] :][: row["size"] + MOST_HEAD]
            frames = [row["body"][at : at + FRAME] for at in range(0, len(row["body"]), FRAME)]
            if not _has_properties(there, row["rawProperties"]) or not all(frame in there for frame in frames):
                lines.append(f"{row['queue']} {row['raftIndex']} is not at {row['position']} of {row['file']}")
        return lines[:FEW]


class StreamRows:
    """What the unharmed streams hold, to compare their harmed copies with."""

    SAME = ("queue", "streamOffset", "rawSections", "body", "rawProperties", "exchange", "routingKeys", "size")

    def __init__(self, original: Path) -> None:
        rows, _ = self._read(original)
        self._known = {self._key(row) for row in rows}
        self._files = {(row["queue"], row["streamOffset"]): row["file"] for row in rows}
        self.keys: list[str] = []

    def _read(self, store: Path) -> tuple[list[dict[str, Any]], bool]:
        """The whole rows, and whether anything was said beside them."""
        with open_store(str(store)) as opened:
            columns = (*self.SAME, "file", "position", "corruption")
            snapshot = opened.snapshot()
            plan = snapshot.plan(ScanRequest(columns=columns, mode=Mode.PERMISSIVE))
            rows = [row for piece in plan for batch in piece.read() for row in batch.to_pylist()]
            whole = [row for row in rows if row["corruption"] is None]
            return whole, len(whole) < len(rows) or bool(snapshot.warnings())

    def _key(self, row: dict[str, Any]) -> tuple[Any, ...]:
        return tuple(tuple(row[name]) if name == "routingKeys" else row[name] for name in self.SAME)

    def problems(self, store: Path, version: str) -> list[str]:
        """Rows of a harmed copy that are none of it, a line each, and messages that are missing without a word."""
        del version
        rows, told = self._read(store)
        lines = []
        seen = [(row["queue"], row["streamOffset"]) for row in rows]
        if len(set(seen)) < len(seen):
            lines.append(f"{len(seen) - len(set(seen))} messages twice")
        for row in rows:
            if self._key(row) in self._known:
                continue
            there = (store / row["file"]).read_bytes()[row["position"] :][: len(row["rawSections"]) + MOST_HEAD]
            if row["rawSections"] not in there:
                lines.append(f"{row['queue']} {row['streamOffset']} is not at {row['position']} of {row['file']}")
        missing = {each for each in self._files.keys() - set(seen) if not _is_gone(store / self._files[each])}
        if missing and not told:
            lines.append(f"{len(missing)} messages are missing without a word, the first {min(missing)}")
        return lines[:FEW]


def _is_gone(segment: Path) -> bool:
    """Whether both files of a segment are gone, before or after all others: nothing there says that it was."""
    others = [path.stem for path in segment.parent.glob("*.*")]
    return segment.stem not in others and not min(others, default="") < segment.stem < max(others, default="")


def rabbit_folder(name: str, folder: Path) -> Path:
    """The first virtual host of a snapshot that is unpacked below `folder`."""
    return min(path for path in golden.unpack(name, folder).iterdir() if path.is_dir())


def _has_properties(stored: bytes, delivered: bytes) -> bool:
    """Whether a message has these properties. Those of a container are delivered with the headers in another order, and
    with what a node noted: each header, as it is encoded, and each text must stand there then. Of properties that lie
    decoded only the texts do.
    """
    if delivered in stored or not any(mark in stored for mark in SPELLED_ANEW):
        return delivered in stored
    listed = properties.decode(delivered)
    headers = listed.pop("headers", None) or []
    texts = [value for name, value in listed.items() if isinstance(value, bytes) and name != "expiration"]
    if DECODED in stored:
        encoded = [name for name, _, _ in headers]
    else:
        encoded = [properties.encode({"headers": [item]})[HEADERS_HEAD:] for item in headers]
    return all(part in stored for part in (*texts, *encoded))
