"""Java's hash: values that Java computed (rocketmq.md 10), and columns compared with the slow twin."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage_core.formats.java_hash import java_hash, java_hashes
from storage_core.formats.rocketmq.indexfile import key_hash, key_hashes
from tests.reference import rocketmq_index, rocketmq_model

pytestmark = pytest.mark.usefixtures("either_loops")

FROM_JAVA = {
    "": 0,
    "A": 65,
    "TagA": 2598919,
    "标签": 857175,
    "😀": 1772899,
    "AaAa": 2031744,
    "BBBB": 2031744,
    "KEYS": 2303476,
    "MSG_REGION": -1929015918,
    "polygenelubricants": -(1 << 31),
}


@pytest.mark.parametrize("text", FROM_JAVA)
def test_one_text(text: str) -> None:
    assert java_hash(text) == FROM_JAVA[text]


def test_a_column() -> None:
    assert java_hashes(pa.array(list(FROM_JAVA))).tolist() == list(FROM_JAVA.values())


@given(st.lists(st.none() | st.text(st.characters(exclude_categories=["Cs"]))), st.integers(0, 3))
def test_a_column_is_its_texts(texts: list[str | None], cut: int) -> None:
    column = pa.array(texts, pa.string())[cut:]
    expected = [rocketmq_model.java_hash(text or "") for text in texts[cut:]]
    assert java_hashes(column).tolist() == expected
    assert [java_hash(text or "") for text in texts[cut:]] == expected


@given(st.lists(st.tuples(st.text("aä€😀#"), st.text("bZ😀"))))
def test_hashes_continue_from_a_prefix(pairs: list[tuple[str, str]]) -> None:
    before = np.array([java_hash(first) for first, _ in pairs], np.int32)
    found = java_hashes(pa.array([second for _, second in pairs], pa.string()), before)
    assert found.tolist() == [java_hash(first + second) for first, second in pairs]


@given(st.lists(st.text(st.characters(max_codepoint=0x7F)), max_size=9), st.integers(0, 3))
def test_a_column_of_ascii(texts: list[str], cut: int) -> None:
    assert java_hashes(pa.array(texts, pa.string())[cut:]).tolist() == [java_hash(text) for text in texts[cut:]]


def test_the_smallest_hash_is_indexed_as_zero() -> None:
    assert key_hash("T", "jllgvmc") == 0
    assert key_hashes(pa.array(["T"]), pa.array(["jllgvmc"])).tolist() == [0]


@given(st.lists(st.tuples(st.text("Tä%"), st.text("kö😀 "))))
def test_keys_are_hashed_with_their_topic(pairs: list[tuple[str, str]]) -> None:
    topics, keys = ([pair[part] for pair in pairs] for part in (0, 1))
    found = key_hashes(pa.array(topics, pa.string()), pa.array(keys, pa.string()))
    assert found.tolist() == [rocketmq_index.key_hash(topic, key) for topic, key in pairs]
    assert found.tolist() == [key_hash(topic, key) for topic, key in pairs]
