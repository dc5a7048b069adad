"""The options of a write, as Spark passes them: checked before a task runs, committed by the driver."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from storage_core.errors import ColumnError, MqStoreError, OptionError, RowError
from tests.contract.data_source import save, sent, writer
from tests.contract.engine import Engine
from tests.contract.messages import COUNTS, NEW, numbered
from tests.contract.writing import contents


def test_a_save_is_one_job(engine: Engine, own: Path) -> None:
    save(own, engine.table(NEW))
    assert len(engine.rows(own)) == sum(COUNTS.values()) + len(NEW)


def test_a_save_makes_a_new_store_of_the_engine_asked_for(engine: Engine, tmp_path: Path) -> None:
    save(tmp_path / "new", engine.table(NEW), engine=engine.name)
    assert sorted(engine.rows(tmp_path / "new")) == numbered(NEW)


def test_tasks_without_a_message_count_as_none(engine: Engine, own: Path) -> None:
    made = writer(own, engine.table(NEW))
    made.commit([None, sent(made).write(iter(engine.table(NEW).to_batches())), None])
    assert len(engine.rows(own)) == sum(COUNTS.values()) + len(NEW)


def test_columns_are_checked_before_a_task_runs(engine: Engine, own: Path) -> None:
    before = contents(own)
    table = engine.table(NEW)
    for wrong in (table.append_column("bodi", pa.nulls(len(NEW), pa.string())), table.drop_columns(["body"])):
        with pytest.raises(ColumnError):
            writer(own, wrong)
    assert contents(own) == before


@pytest.mark.parametrize("there", [True, False])
def test_a_refused_save_leaves_no_trace(engine: Engine, own: Path, there: bool) -> None:
    root = own if there else own.parent / "new"
    before = contents(own)
    table = engine.table(NEW)
    bad = table.set_column(table.schema.get_field_index("body"), "body", pa.nulls(len(NEW), pa.binary()))
    with pytest.raises(RowError, match="row 0 of its task"):
        save(root, bad, engine=engine.name)
    after = contents(own)
    after.pop("new", None)
    assert after == before


def test_overwrite_is_refused(engine: Engine, own: Path) -> None:
    before = contents(own)
    with pytest.raises(MqStoreError, match="append"):
        writer(own, engine.table(NEW), overwrite=True)
    assert contents(own) == before


def test_names_of_options_have_no_case_and_topic_is_for_all_rows(engine: Engine, own: Path) -> None:
    save(own, engine.table(NEW).drop_columns([engine.queue_column]), Topic="all", LOCKTIMEOUT="1s")
    assert sorted(body for name, _, body in engine.rows(own) if name == "all") == sorted(m.body for m in NEW)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [("lockTimeut", "1s", "lockTimeout"), ("lockTimeout", "soon", "60s"), ("startingOffsets", "earliest", "reading"),
     ("engine", "kafka", "rabbitmq")],
)  # fmt: skip
def test_a_wrong_option_is_one_line(engine: Engine, own: Path, name: str, text: str, message: str) -> None:
    before = contents(own)
    with pytest.raises(OptionError, match=message) as caught:
        writer(own, engine.table(NEW), **{name: text})
    assert caught.value.name.lower() == name.lower()
    assert "\n" not in str(caught.value)
    assert contents(own) == before


OF_ONE = {
    "rocketmq": {"queues": "8", "preserve": "true", "storeHost": "10.0.0.1:1", "commitLogFileSize": "1m"},
    "rabbitmq": {"vhost": "/", "queue": "alpha", "exchange": "x", "msg_store_file_size_limit": "100000"},
}


def test_options_of_the_other_engine_name_it(engine: Engine, own: Path) -> None:
    (other,) = set(OF_ONE) - {engine.name}
    for name, text in OF_ONE[other].items():
        with pytest.raises(OptionError, match={"rocketmq": "RocketMQ", "rabbitmq": "RabbitMQ"}[other]) as caught:
            writer(own, engine.table(NEW), **{name: text})
        assert (caught.value.name, caught.value.value) == (name, text)
