"""What the real store serves from a copy of a directory, and what a reader of that directory must therefore return."""

from __future__ import annotations

import base64
import shutil
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from storage_core.errors import MqStoreError
from storage_core.store import Mode, Scan
from tests.golden.archive import fingerprint
from tests.real.oracle import Answer, NeverAnswersError, Oracle, Settings
from tests.reference.rocketmq_record import MAGIC_V2, Damaged, Log, NotARecord, inflate
from tests.reference.served import AS_BROKER, Row, differences, expected_row, in_partitions, place, read
from tests.support.rocketmq_files import entry, log_files, queue_files

RECOVERY = {"493": "4.9", "533": "5.x"}

Place = tuple[str, int, int]


@dataclass
class Truth:
    """The real store's answers."""

    version: str
    messages: list[dict[str, Any]] = field(default_factory=list)
    ends: dict[tuple[str, int], int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    never_answers: bool = False


def ask(version: str, store: Path, settings: Settings) -> Truth:
    """Opens a copy of `store` with a real store and queries it for everything. Files of length zero, which 4.9.3 does
    not load and 5.3.3 deletes, are left out of the copy.
    """
    copy = store.parent / f"{store.name}-{version}" / "store"
    shutil.copytree(store, copy)
    for path in log_files(copy) + queue_files(copy):
        if path.stat().st_size == 0:
            path.unlink()
    truth = Truth(version)
    try:
        with Oracle(version, copy, _without_writer_settings(settings), timeout_s=25.0) as oracle:
            if not oracle.loaded:
                raise NeverAnswersError("the real store refuses to load the directory")
            oracle.ask(op="wait")
            for topic, queue_ids in oracle.ask(op="queues")["queues"].items():
                for queue_id in queue_ids:
                    truth.ends[topic, queue_id] = oracle.ask(op="minmax", topic=topic, queueId=queue_id)["max"]
            answers = oracle.all_messages()
            low = oracle.ask(op="minmax", topic="T", queueId=0)["minPhy"]
            oracle.halt()
        _keep_messages(truth, answers, copy, low)
    except NeverAnswersError as silence:
        truth.never_answers = True
        truth.notes.append(str(silence))
    shutil.rmtree(copy.parent)
    return truth


def _without_writer_settings(settings: Settings) -> Settings:
    return {name: value for name, value in settings.items() if name != "oracle.delay"}


def _keep_messages(truth: Truth, answers: list[Answer], copy: Path, low: int) -> None:
    """Keeps the messages among the answers. Drops bytes that do not decode, bodies that do not inflate, and bytes of
    the oldest file that are served for a unit whose physical offset 0 no longer exists (format page 6.1).
    """
    for answer in answers:
        at: Place = (answer["cqTopic"], answer["cqQueueId"], answer["cqOffset"])
        found = entry(copy, *at)
        if answer.get("undecodable"):
            truth.notes.append(f"{at}: served bytes do not decode")
        elif found is None or found[0] < low:
            truth.notes.append(f"{at}: served from the oldest file, unit says {found}")
        else:
            try:
                truth.messages.append(_truth_line(answer, at, found[0]))
            except Damaged:
                truth.notes.append(f"{at}: the body does not inflate")


def _truth_line(answer: Answer, at: Place, physical_offset: int) -> dict[str, Any]:
    stored = base64.b64decode(answer["body64"] or "")
    # 4.9.3 treats every compressed body as zlib; a reader follows the bits that state the kind (interface.md 5).
    body = base64.b64decode(answer["decoded64"]) if "decoded64" in answer else inflate(stored, answer["sysFlag"])
    same = ("topic", "queueId", "queueOffset", "size", "bornHost", "storeHost", "flag", "sysFlag", "reconsumeTimes")
    return {
        **{name: answer[name] for name in (*same, "bodyCrc")},
        "physicalOffset": answer["phy"],
        "unitOffset": physical_offset,
        "storeTimestamp": answer["storeTs"],
        "bornTimestamp": answer["bornTs"],
        "preparedTransactionOffset": answer["pto"],
        "body64": base64.b64encode(body).decode(),
        "properties": answer["props"] or {},
        "offsetMsgId": answer["msgId"],
        "foundAt": at,
    }


def check(store: Path, truth: Truth, touched: set[int], partitions: int, automatic: bool) -> list[str]:
    """All differences between mqstore's answers about `store` and the real store's; empty if there are none."""
    before = fingerprint(store)
    options = {} if automatic else {"recovery": RECOVERY[truth.version]}
    log = Log(store / "commitlog")
    strict, loose = _expected(truth, touched, log)
    lines = []
    for count in (1, partitions):
        rows = read(store, in_partitions(count, **AS_BROKER), **options)
        kept = [row for row in rows if place(row) not in loose]
        lines += [f"{count} partitions: {line}" for line in differences(strict, kept)]
        lines += [f"{count} partitions: {line}" for row in rows for line in _loosely(loose.get(place(row)), row)]
    lines += [f"failfast: {line}" for line in _fail_fast(store, strict, loose, options)]
    lines += [f"scan=log: {line}" for line in _log_scan(store, log, partitions)]
    if fingerprint(store) != before:
        lines.append("reading changed the directory")
    return lines


def _expected(truth: Truth, touched: set[int], log: Log) -> tuple[list[Row], dict[Place, dict[str, Any]]]:
    """Rows that must be equal in every column, and messages that a reader may leave out: their record was changed
    outside its body, so a broker serves what nobody sent.
    """
    strict, loose = [], {}
    for message in truth.messages:
        odd = message["unitOffset"] in touched or message["unitOffset"] != message["physicalOffset"]
        # A 4.9.3 client misreads the topic of a V2 record.
        if odd or (truth.version == "493" and log.fields(message["physicalOffset"])["magic"] == MAGIC_V2):
            loose[message["foundAt"]] = message
        else:
            strict.append(expected_row(message, log))
    return strict, loose


def _loosely(message: dict[str, Any] | None, row: Row) -> list[str]:
    if message is None:
        return []
    names = ("size", "flag", "storeTimestamp", "bornTimestamp", "reconsumeTimes")
    return [
        f"{place(row)}: {name} is {row[name]}, the broker serves {message[name]}"
        for name in names
        if row[name] != message[name] and row[name] is not None
    ]


def _fail_fast(store: Path, strict: list[Row], loose: dict[Place, Any], options: dict[str, str]) -> list[str]:
    """The differences with FAILFAST, which must return the same rows or a one-line error that names the store."""
    try:
        rows = read(store, in_partitions(1, mode=Mode.FAILFAST), **options)
    except MqStoreError as error:
        text = str(error)
        return [] if "\n" not in text and str(store) in text else [f"not one line that names the store: {text}"]
    return differences(strict, [row for row in rows if place(row) not in loose])


def _log_scan(store: Path, log: Log, partitions: int) -> list[str]:
    expected = []
    for fields in log.right_records():
        try:
            expected.append(log.row(fields["physicalOffset"]))
        except (ValueError, struct.error, NotARecord):
            continue
    return differences(expected, read(store, in_partitions(partitions, scan=Scan.LOG, **AS_BROKER)))


def check_ends(truth: Truth, queues: dict[tuple[str, int], int]) -> list[str]:
    """Queue ends that differ from the real store's."""
    return [
        f"queue {name} ends at {queues.get(name)}, in the real store at {stop}"
        for name, stop in truth.ends.items()
        if stop > 0 and queues.get(name) != stop
    ]
