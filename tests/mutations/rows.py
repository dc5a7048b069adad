"""Checks that the rows of a damaged store are genuine: those of the undamaged store, or of bytes really stored there.

For a RocketMQ store, also checks that each row is where the slow twin of both stock stores serves it.
"""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

from storage_core import open_store
from storage_core.formats.rabbitmq.amqp import properties
from storage_core.formats.rabbitmq.message import message_container
from storage_core.formats.rocketmq.message import Flaw
from storage_core.store import Mode, Predicate, Scan, ScanRequest
from tests.golden import archive
from tests.rabbitmq import golden
from tests.reference.rocketmq_record import NATIVE_COLUMNS, Damaged, Log, NotARecord
from tests.reference.rocketmq_recovery import Recovered
from tests.reference.served import AS_BROKER, Row, differences, in_partitions, place, read
from tests.support.rocketmq_files import log_files, queue_files

RECOVERY = {"493": "4.9", "533": "5.x"}
OF_THE_QUEUE = ("topic", "queueId", "queueOffset", "store")
CONTENT = tuple(name for name in NATIVE_COLUMNS if name not in OF_THE_QUEUE)
OTHER_KINDS = ("ledger", "batched", "compacted")
"""Fixtures that the slow twin does not support: with a DLedger log, with batch queues, with compacted topics."""
FEW = 4
FRAME = 131_064
"""Bytes of a body that a client sends at once, and a node stores as one binary."""
MOST_HEAD = 70_000
DECODED = b"P_basic"
REENCODED = message_container.LEGACY.encode(), DECODED
"""Markers of messages in quorum queues whose properties are not stored as they are delivered."""
HEADERS_HEAD = 6
"""Bytes of a property list before its first header: two of flags, four of a length."""


class RocketRows:
    """What the undamaged RocketMQ store `name` serves, to compare its damaged copies with."""

    def __init__(self, name: str, original: Path) -> None:
        self._settings = archive.info(name)["settings"]
        self._before = Log(original / "commitlog")
        self.keys = sorted({row["key"] for row in read(original, in_partitions(1, **AS_BROKER)) if row["key"]})

    def problems(self, store: Path, version: str) -> list[str]:
        """Rows that a damaged copy does not really contain, one line each."""
        log = Log(store / "commitlog")
        lines = []
        for scan, columns in ((Scan.QUEUES, CONTENT), (Scan.LOG, tuple(n for n in NATIVE_COLUMNS if n != "store"))):
            request = in_partitions(1, scan=scan, mode=Mode.PERMISSIVE, columns=(*columns, "corruption"))
            for row in read(store, request):
                if row.pop("corruption") is None:
                    lines += self._invented(row, log)
        return lines[:FEW] + self._misplaced(store, version, log)

    def _invented(self, row: Row, log: Log) -> list[str]:
        """The problems of a row; none if its record is in the log with the right checksum."""
        at = row["physicalOffset"]
        try:
            fields, expected = log.fields(at), log.row(at)
        except (NotARecord, Damaged) as error:
            return [f"a row at {at}: {type(error).__name__}"]
        # Nobody checks the checksum of an empty body.
        if fields["storedBody"] and zlib.crc32(fields["storedBody"]) & 0x7FFFFFFF != fields["bodyCrc"]:
            return [f"a row at {at} whose checksum is wrong"]
        return [f"a row at {at}: {name} is {row[name]!r:.60}, {expected[name]!r:.60} stands there"
                for name in row if row[name] != expected[name]]  # fmt: skip

    def _misplaced(self, store: Path, version: str, log: Log) -> list[str]:
        """Places where the twin serves other messages; records with changed bytes are not compared."""
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
        found = read(store, wanted, recovery=RECOVERY[version])
        # Messages in the wrong queue, or at the wrong place in it, are damaged (interface.md 41).
        strange = {place(row) for row in found if Flaw.QUEUE.value in (row["corruption"] or "")}
        loose |= strange
        strict = [row for row in strict if place(row) not in strange]
        rows = read(store, in_partitions(2, **AS_BROKER), recovery=RECOVERY[version])
        return differences(strict, [row for row in rows if place(row) not in loose], FEW)

    def _unchanged(self, log: Log, at: int) -> Row | None:
        """The row at an address, if the undamaged store has the same record there."""
        try:
            return log.row(at) if log.fields(at) == self._before.fields(at) else None
        except (NotARecord, Damaged):
            return None


def _loads(store: Path, log_size: int, queue_size: int) -> bool:
    """Whether a stock store would look beyond the names and lengths of the files."""
    paths = {path for name in ("commitlog", "consumequeue") for path in (store / name).rglob("*") if not path.is_dir()}
    sizes = dict.fromkeys(log_files(store), log_size) | dict.fromkeys(queue_files(store), -(-queue_size // 20) * 20)
    return sizes.keys() == paths and all(path.exists() and path.stat().st_size == sizes[path] for path in paths)


class OtherRows:
    """A damaged RocketMQ store of one of OTHER_KINDS: every way of reading its queues yields the same rows."""

    def __init__(self, original: Path) -> None:
        self.keys = sorted({row["key"] for row in read(original, in_partitions(1, **AS_BROKER)) if row["key"]})

    def problems(self, store: Path, version: str) -> list[str]:
        """How a read in several partitions, or one of part of the log, differs; one line each."""
        options = {"recovery": RECOVERY[version]}

        def rows(partitions: int, **request: object) -> list[Row]:
            return sorted(read(store, in_partitions(partitions, **request, **AS_BROKER), **options), key=str)

        whole = rows(1)
        middle = sorted(row["physicalOffset"] for row in whole)[len(whole) // 2] if whole else 0
        late = Predicate("physicalOffset", ">=", middle)
        lines = [] if rows(5) == whole else ["other rows in five partitions"]
        if rows(3, predicates=(late,)) != [row for row in whole if row["physicalOffset"] >= middle]:
            lines.append(f"other rows from physical offset {middle} on")
        return lines


class RabbitRows:
    """What the undamaged RabbitMQ store serves, to compare its damaged copies with."""

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
        # The body of an acknowledged message may have been removed.
        return [row for row in rows if row["corruption"] is None and not (row["acked"] and row["body"] is None)]

    def _key(self, row: dict[str, Any], named: bool) -> tuple[Any, ...]:
        return tuple(row[name] for name in self.SAME if named or name != "queue")

    def problems(self, store: Path, version: str) -> list[str]:
        """Rows that a damaged copy does not really contain, one line each."""
        del version
        rows, lines = self._rows(store), []
        seen = [(row["queue"], row["sequenceId"], row["guid"]) for row in rows]
        if len(set(seen)) < len(seen):
            lines.append(f"{len(seen) - len(set(seen))} messages twice")
        files: dict[str, bytes] = {}
        for row in rows:
            # A queue whose name is lost is listed under the name of its folder.
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
    """What the undamaged quorum queues hold or held, to compare their damaged copies with."""

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
        """Rows that a damaged copy does not really contain, one line each.

        A changed row is valid if its checksum was set to 0.
        """
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
    """What the undamaged streams hold, to compare their damaged copies with."""

    SAME = ("queue", "streamOffset", "rawSections", "body", "rawProperties", "exchange", "routingKeys", "size")

    def __init__(self, original: Path) -> None:
        rows, _ = self._read(original)
        self._known = {self._key(row) for row in rows}
        self._files = {(row["queue"], row["streamOffset"]): row["file"] for row in rows}
        self.keys: list[str] = []

    def _read(self, store: Path) -> tuple[list[dict[str, Any]], bool]:
        """The undamaged rows, and whether any damage or warning was reported besides."""
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
        """Rows that a damaged copy does not really contain, and unreported missing messages, one line each."""
        del version
        rows, reported = self._read(store)
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
        if missing and not reported:
            lines.append(f"{len(missing)} messages are missing without a word, the first {min(missing)}")
        return lines[:FEW]


def _is_gone(segment: Path) -> bool:
    """Whether both files of a segment before or after all others are missing: nothing shows that it ever existed."""
    others = [path.stem for path in segment.parent.glob("*.*")]
    return segment.stem not in others and not min(others, default="") < segment.stem < max(others, default="")


def rabbit_folder(name: str, folder: Path) -> Path:
    """The first virtual host of a snapshot, unpacked below `folder`."""
    return min(path for path in golden.unpack(name, folder).iterdir() if path.is_dir())


def _has_properties(stored: bytes, delivered: bytes) -> bool:
    """Whether a stored message has these properties.

    The properties of a message container are delivered with the headers in another order and with the annotations of
    the node: then each encoded header and each text must be in the stored bytes. Of properties that are stored
    decoded, only the texts must be.
    """
    if delivered in stored or not any(mark in stored for mark in REENCODED):
        return delivered in stored
    listed = properties.decode(delivered)
    headers = listed.pop("headers", None) or []
    texts = [value for name, value in listed.items() if isinstance(value, bytes) and name != "expiration"]
    if DECODED in stored:
        encoded = [name for name, _, _ in headers]
    else:
        encoded = [properties.encode({"headers": [item]})[HEADERS_HEAD:] for item in headers]
    return all(part in stored for part in (*texts, *encoded))
