"""The writing examples do what they claim."""

from __future__ import annotations

import shutil
from pathlib import Path

from examples import write_dataframe, write_kafka_frame, write_merged, write_topic_copy
from tests.golden import archive


def test_the_writing_examples(spark, tmp_path: Path) -> None:
    orders, events = str(tmp_path / "orders"), str(tmp_path / "events")
    assert write_dataframe.run(spark, orders, 100) == 100
    assert write_kafka_frame.run(spark, events, 60) == 60
    assert write_merged.run(spark, orders, events, str(tmp_path / "both")) == 160


def test_a_topic_of_a_store_without_its_queues(spark, tmp_path: Path) -> None:
    broken = archive.unpack("shop-4.9.3", tmp_path)
    shutil.rmtree(broken / "consumequeue")
    wanted = [row for row in archive.truth("shop-4.9.3") if row["topic"] == "payments"]
    done = write_topic_copy.run(spark, str(broken), "payments", str(tmp_path / "rescued"))
    assert list(done.values()) == [len(wanted), len(wanted), 0, 0]


def test_rescued_properties_that_no_store_may_have_are_mended(spark, load, tmp_path: Path) -> None:
    name = "damaged-flipped-body-abort-4.9.3"
    broken = archive.unpack(name, tmp_path)
    every = load(str(broken), scan="log", mode="DROPMALFORMED", topic="orders").collect()
    found = [row for row in every if row.body]
    harmful = [row for row in found if {"\x01", "\x02"} & set("".join([*row.properties, *row.properties.values()]))]
    assert harmful
    target = str(tmp_path / "rescued")
    done = write_topic_copy.run(spark, str(broken), "orders", target)
    assert list(done.values()) == [len(found), len(every), len(harmful), len(every) - len(found)]
    assert len(found) > 200
    values = [value for row in load(target).collect() for value in row.properties.values()]
    assert any("a?b" in value for value in values)
