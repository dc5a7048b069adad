"""Which messages a read selects: by topic, pattern, queue, column, time, key, group.

Each option is applied or rejected, never ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storage_core import open_store
from storage_core.errors import OptionError
from storage_core.store import EARLIEST, LATEST, Mode, OffsetBound, Scan, ScanRequest
from tests.contract.engine import Engine, Message, Seen, read


def plan(root: Path, request: ScanRequest) -> list[pa.RecordBatch]:
    with open_store(str(root)) as opened:
        return read(opened.snapshot().plan(request))


# -- queues


def test_topics_select_whole_queues(engine: Engine, store: Path, of_queue: Callable[[str], list[Seen]]) -> None:
    assert sorted(engine.rows(store, topics=("gamma",))) == of_queue("gamma")
    assert sorted(engine.rows(store, topics=("gamma", "alpha"))) == of_queue("alpha") + of_queue("gamma")


def test_a_pattern_matches_whole_names(engine: Engine, store: Path, of_queue: Callable[[str], list[Seen]]) -> None:
    assert sorted(engine.rows(store, topic_pattern="al.*")) == of_queue("alpha")
    assert sorted(engine.rows(store, topic_pattern="alph|be.a")) == of_queue("beta")
    assert engine.rows(store, topic_pattern="lph") == []


def test_assigned_queues_are_those(engine: Engine, store: Path, of_queue: Callable[[str], list[Seen]]) -> None:
    assert sorted(engine.rows(store, assign=(("beta", 0),))) == of_queue("beta")


UNKNOWN: dict[str, dict[str, Any]] = {
    "topics": {"topics": ("alpha", "alpah")},
    "assign": {"assign": (("alpah", 0),)},
    "startingOffsets": {"start": OffsetBound(EARLIEST, {("alpah", 0): 1})},
    "endingOffsets": {"stop": OffsetBound(LATEST, {("alpah", 0): 1})},
}


@pytest.mark.parametrize("where", UNKNOWN)
def test_a_queue_that_is_not_there_names_close_ones(engine: Engine, store: Path, where: str) -> None:
    with pytest.raises(OptionError, match=r"\balpha\b") as caught:
        engine.rows(store, **UNKNOWN[where])
    assert "alpah" in caught.value.value
    names = {"topics": {"topic", "queue"}}.get(where, {where})
    assert caught.value.name in names
    assert "gamma" in str(caught.value), "and all that are there, while they are few"


@pytest.mark.parametrize("where", ["assign", "startingOffsets", "endingOffsets"])
def test_a_queue_id_that_is_not_there_names_those_that_are(engine: Engine, store: Path, where: str) -> None:
    fields = {
        "assign": {"assign": (("alpha", 7),)},
        "startingOffsets": {"start": OffsetBound(EARLIEST, {("alpha", 7): 1})},
        "endingOffsets": {"stop": OffsetBound(LATEST, {("alpha", 7): 1})},
    }[where]
    with pytest.raises(OptionError, match=r"\b0\b") as caught:
        engine.rows(store, **fields)
    assert (caught.value.name, caught.value.value) == (where, "alpha/7")


# -- columns


def test_a_projection_changes_no_value(engine: Engine, store: Path) -> None:
    whole = pa.Table.from_batches(plan(store, ScanRequest()))
    for name in whole.schema.names:
        alone = pa.Table.from_batches(plan(store, ScanRequest(columns=(name,))))
        assert alone[name].combine_chunks().equals(whole[name].combine_chunks()), name


def test_native_columns_say_what_was_written(engine: Engine, store: Path, messages: list[Message]) -> None:
    rows = pa.Table.from_batches(plan(store, ScanRequest())).to_pylist()
    written = {message.body: message for message in messages}
    assert len(rows) == len(written)
    for row in rows:
        message = written[row["body"]]
        assert row[engine.queue_column] == message.queue
        assert row[engine.text_column] == message.text
        assert row[engine.time_column].timestamp() == message.second
        assert row["store"] == "store"


def test_an_unknown_column_names_close_ones(engine: Engine, store: Path) -> None:
    with open_store(str(store)) as opened:
        snapshot = opened.snapshot()
        for ask in (snapshot.schema, snapshot.plan):
            with pytest.raises(OptionError, match=r"\bbody\b") as caught:
                ask(ScanRequest(columns=("store", "bodi")))
            assert (caught.value.name, caught.value.value) == ("columns", "bodi")


def test_only_permissive_rows_have_a_corruption(engine: Engine, store: Path) -> None:
    with open_store(str(store)) as opened:
        snapshot = opened.snapshot()
        native = snapshot.schema(ScanRequest()).names
        assert snapshot.schema(ScanRequest(mode=Mode.DROPMALFORMED)).names == native
        assert snapshot.schema(ScanRequest(mode=Mode.PERMISSIVE)).names == [*native, "corruption"]
        with pytest.raises(OptionError, match="corruption"):
            snapshot.schema(ScanRequest(columns=("corruption",)))
    table = pa.Table.from_batches(plan(store, ScanRequest(columns=("corruption",), mode=Mode.PERMISSIVE)))
    assert table["corruption"].null_count == len(table) == 64


# -- options that one engine supports and the other rejects


def kept_or_refused(engine: Engine, root: Path, option: str, **fields: Any) -> list[Seen] | None:
    """The rows; None if the engine rejects the option, by name."""
    if option not in engine.refuses:
        return sorted(engine.rows(root, **fields))
    option_name = "startingOffsets" if option == "group" else option
    with pytest.raises(OptionError) as caught:
        engine.rows(root, **fields)
    assert caught.value.name == option_name
    assert "\n" not in str(caught.value)
    return None


def test_a_key_finds_its_messages(engine: Engine, store: Path, of_queue: Callable[[str], list[Seen]]) -> None:
    expected_by_key = {"alpha": of_queue("alpha"), "nowhere": [], "": []}
    for key, expected in expected_by_key.items():
        assert kept_or_refused(engine, store, "key", keys=(key,)) in (expected, None)
    both = kept_or_refused(engine, store, "key", keys=("gamma", "", "alpha"))
    assert both in (of_queue("alpha") + of_queue("gamma"), None)
    first = of_queue("alpha")[0]
    word = first[2].split()[0].decode()
    assert kept_or_refused(engine, store, "key", keys=(word,), use_index=False) in ([first], None)


def test_a_message_id_finds_its_message(engine: Engine, store: Path, everything: list[Seen]) -> None:
    ids = [None] * len(everything)
    if "msgId" not in engine.refuses:
        table = pa.Table.from_batches(plan(store, ScanRequest(columns=("offsetMsgId", "body"))))
        ids = table.sort_by("body")["offsetMsgId"].to_pylist()
    by_body = sorted(everything, key=lambda row: row[2])
    for wanted, row in list(zip(ids, by_body, strict=True))[::9]:
        assert kept_or_refused(engine, store, "msgId", message_ids=(wanted or "0" * 32,)) in ([row], None)
    assert kept_or_refused(engine, store, "msgId", message_ids=("",)) in ([], None)


def test_a_tag_finds_its_messages(engine: Engine, store: Path, messages: list[Message], everything: list[Seen]) -> None:
    for tags in (("red",), ("red", "green"), ("gree",)):
        bodies = {message.body for message in messages if message.text in tags}
        expected = [row for row in everything if row[2] in bodies]
        assert kept_or_refused(engine, store, "tag", tags=tags) in (expected, None)


def test_find_by_key_and_id(engine: Engine, store: Path, of_queue: Callable[[str], list[Seen]]) -> None:
    with open_store(str(store)) as opened:
        for option, question in (("key", {"key": "alpha"}), ("msgId", {"msg_id": "no id"})):
            if option in engine.refuses:
                with pytest.raises(OptionError):
                    list(opened.find(**question))
            else:
                found = sorted(engine.seen(opened.find(**question)))
                assert found == (of_queue("alpha") if option == "key" else [])


def test_the_log_alone_holds_every_message(engine: Engine, store: Path, everything: list[Seen]) -> None:
    assert kept_or_refused(engine, store, "scan", scan=Scan.LOG) in (everything, None)


def test_times_are_inclusive_and_exclusive(engine: Engine, own: Path) -> None:
    """Of two jobs a second apart: the messages stored from T on, and those stored before T."""
    if "startingTimestamp" in engine.refuses:
        assert kept_or_refused(engine, own, "startingTimestamp", start_ms=1) is None
        assert kept_or_refused(engine, own, "endingTimestamp", stop_ms=1) is None
        return
    old = sorted(engine.rows(own))
    with open_store(str(own)) as opened:
        opened.append(engine.table([Message("alpha", b"later")]))
    times = pa.Table.from_batches(plan(own, ScanRequest(columns=("body", "storeTimestamp")))).to_pylist()
    at = next(row["storeTimestamp"] for row in times if row["body"] == b"later")
    ms = round(at.timestamp() * 1000)
    assert {row["storeTimestamp"] for row in times} != {at}
    assert [body for _, _, body in engine.rows(own, start_ms=ms)] == [b"later"]
    assert sorted(engine.rows(own, stop_ms=ms)) == old
    assert engine.rows(own, start_ms=ms + 1) == engine.rows(own, start_ms=ms, stop_ms=ms) == []


def test_acknowledged_messages_are_shown_where_there_are_any(engine: Engine, own: Path) -> None:
    if "includeAcked" in engine.refuses:
        assert kept_or_refused(engine, own, "includeAcked", include_acked=True) is None
        return
    first = engine.lose_first(own, "alpha")
    request = engine.request(columns=(engine.queue_column, engine.offset_column, "acked"), include_acked=True)
    rows = pa.Table.from_batches(plan(own, request)).to_pylist()
    acked = sorted(row[engine.offset_column] for row in rows if row["acked"])
    assert set(acked) <= set(range(first))
    assert len([row for row in rows if not row["acked"]]) == len(engine.rows(own))


def test_a_group_reads_what_it_has_not_read(engine: Engine, own: Path, of_queue: Callable[[str], list[Seen]]) -> None:
    """Only messages of topics in which it has committed an offset."""
    if "group" not in engine.refuses:
        engine.commit_group(own, "billing", {"alpha": 30})
    start = OffsetBound(EARLIEST, group="billing")
    assert kept_or_refused(engine, own, "group", start=start) in (of_queue("alpha")[30:], None)


def test_a_group_that_is_nowhere_names_close_ones(engine: Engine, own: Path) -> None:
    if "group" not in engine.refuses:
        engine.commit_group(own, "billing", {"alpha": 30})
    with pytest.raises(OptionError, match=r"billing|no consumer groups") as caught:
        engine.rows(own, start=OffsetBound(EARLIEST, group="biling"))
    assert caught.value.name == "startingOffsets"


def test_a_request_for_no_columns_is_refused(engine: Engine, store: Path) -> None:
    """A batch without columns would have no rows, so a count of them would be wrong."""
    with pytest.raises(OptionError, match="names no column; None reads all"):
        plan(store, ScanRequest(columns=()))
