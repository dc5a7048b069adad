"""Schemas of Spark and Arrow: what passes unchanged, is cast, or is refused; without a session."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from connector import kafka_layout
from connector.schema import check_user_schema, fit, projected, to_arrow, to_spark
from storage_core.errors import OptionError
from tests.connector.fake_store import SCHEMA


def test_native_columns_are_what_spark_wants_without_a_cast() -> None:
    assert to_arrow(to_spark(SCHEMA)).equals(SCHEMA)


def test_the_kafka_columns_are_those_of_sparks_kafka_source() -> None:
    headers = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))
    assert to_spark(kafka_layout.schema(include_headers=True)) == StructType(
        [
            StructField("key", BinaryType()),
            StructField("value", BinaryType()),
            StructField("topic", StringType()),
            StructField("partition", IntegerType()),
            StructField("offset", LongType()),
            StructField("timestamp", TimestampType()),
            StructField("timestampType", IntegerType()),
            StructField("headers", headers),
        ]
    )
    assert kafka_layout.schema(include_headers=False).names[-1] == "timestampType"
    assert to_arrow(to_spark(kafka_layout.SCHEMA)).equals(kafka_layout.SCHEMA)


def test_a_batch_of_the_right_type_is_not_touched() -> None:
    batch = pa.RecordBatch.from_pydict({"topic": ["a"]})
    assert fit(batch, batch.schema) is batch


def test_casts() -> None:
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array([1], pa.int32()),
            pa.array([b"\xff\x00"]),
            pa.array(["ä"]),
            pa.array([7], pa.timestamp("us", tz="UTC")),
        ],
        names=["queueId", "body", "topic", "storeTimestamp"],
    )
    target = to_arrow(
        StructType(
            [
                StructField("storeTimestamp", TimestampNTZType()),
                StructField("topic", BinaryType()),
                StructField("body", StringType()),
                StructField("queueId", LongType(), nullable=False),
            ]
        )
    )
    check_user_schema(to_spark(target), batch.schema)
    found = fit(batch, target)
    assert found.schema.equals(target)
    assert found.column("queueId").to_pylist() == [1]
    assert found.column("topic").to_pylist() == ["ä".encode()]
    assert found.column("body").cast(pa.binary()).to_pylist() == [b"\xff\x00"]
    assert found.column("storeTimestamp").cast(pa.int64()).to_pylist() == [7]


def test_a_null_in_a_column_that_the_user_calls_not_null() -> None:
    batch = pa.RecordBatch.from_arrays([pa.array([None], pa.string())], names=["key"])
    with pytest.raises(OptionError, match="option 'schema' = 'key NOT NULL': the column has nulls in this store"):
        fit(batch, to_arrow(StructType([StructField("key", StringType(), nullable=False)])))


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (
            [("bodi", BinaryType())],
            f"there is no column bodi; did you mean body? The columns are {', '.join(SCHEMA.names)}",
        ),
        ([("zzz", BinaryType())], f"there is no column zzz; the columns are {', '.join(SCHEMA.names)}"),
        ([("queueId", StringType())], "column queueId is int or bigint, not string"),
        ([("queueOffset", IntegerType())], "column queueOffset is bigint, not int"),
        ([("body", LongType())], "column body is binary or string, not bigint"),
        (
            [("properties", MapType(StringType(), LongType()))],
            "column properties is map<string,string>, not map<string,bigint>",
        ),
        ([("topic", StringType()), ("topic", StringType())], "names the column topic twice"),
        ([], f"names no column; the columns are {', '.join(SCHEMA.names)}"),
    ],
)
def test_a_users_schema_that_cannot_be(fields, text: str) -> None:
    schema = StructType([StructField(name, kind) for name, kind in fields])
    with pytest.raises(OptionError) as caught:
        check_user_schema(schema, SCHEMA)
    assert str(caught.value).endswith("': " + text)


def test_projection() -> None:
    assert projected(SCHEMA, ("body", "topic")).names == ["body", "topic"]
    assert projected(SCHEMA, None) is SCHEMA
    with pytest.raises(OptionError) as caught:
        projected(SCHEMA, ("body", "topics"))
    assert (
        str(caught.value)
        == "OptionError: option 'columns' = 'body,topics': there is no column topics; did you mean topic? "
        f"The columns are {', '.join(SCHEMA.names)}"
    )
