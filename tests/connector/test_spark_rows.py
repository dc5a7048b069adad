"""Every golden store through Spark: rows equal the truth in every column, with one partition and with seven."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.connector.spark_rows import rows
from tests.golden import archive
from tests.reference.rocketmq_record import NATIVE_COLUMNS, Log
from tests.reference.served import differences, expected_row

AS_BROKER = {"mode": "DROPMALFORMED", "verifyCrc": "false"}


@pytest.mark.parametrize("name", archive.names())
def test_rows_equal_the_truth(load, golden, name: str) -> None:
    directory = golden(name)
    log = Log(Path(directory) / "commitlog")
    expected = [expected_row(message, log) for message in archive.truth(name)]
    for partitions in (1, 7):
        limit = {"minPartitions": "7"} if partitions == 7 else {"maxBytesPerPartition": "1t", "minPartitions": "1"}
        frame = load(directory, **AS_BROKER, **limit)
        assert frame.columns == list(NATIVE_COLUMNS)
        assert differences(expected, rows(frame)) == []


@pytest.mark.parametrize("name", ["mixed-4.9.3", "mixed-5.3.3", "damaged-queues-lost-4.9.3", "broker-killed-4.9.3"])
def test_the_log_alone(load, golden, name: str) -> None:
    directory = golden(name)
    log = Log(Path(directory) / "commitlog")
    expected = [log.row(fields["physicalOffset"]) for fields in log.right_records()]
    for partitions in ("1", "7"):
        frame = load(directory, scan="log", minPartitions=partitions, **AS_BROKER)
        assert differences(expected, rows(frame)) == []
