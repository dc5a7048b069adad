"""Numbers as Java reads them, however long their text is: Python refuses to convert thousands of digits."""

from __future__ import annotations

import pytest

from storage_core.errors import FormatError
from storage_core.formats.java_numbers import natural_of, whole_of
from storage_core.formats.rocketmq.config_json import decode_config
from storage_core.formats.rocketmq.ledger import committed_number
from storage_core.formats.rocketmq.paths import queue_id_of

LONG = "1" * 5000


def test_whole_numbers() -> None:
    texts = ("0", "-0", "+7", "007", "32767", "32768", "-32768", "-32769", "", "+", "--5", "1.0", " 1", "²", "٣", LONG)
    found = [whole_of(text, 16) for text in texts]
    assert found == [0, 0, 7, 7, 32767, None, -32768, *[None] * 7, 3, None]
    assert whole_of("0" * 5000 + "18", 32) == 18
    assert [whole_of(str(number), 64) for number in (2**63 - 1, 2**63, -(2**63))] == [2**63 - 1, None, -(2**63)]


def test_what_a_ledger_states() -> None:
    for text, number in (("12", 12), ("-1", -1), ("--5", -1), ("²", -1), ("", -1), (str(2**63), -1)):
        assert committed_number(f"endIndex=40\ncommittedIndex={text}\n") == number, text


def test_folders_of_queues() -> None:
    names = ("0", "17", "2147483647", "2147483648", "20261130140000", "00", "-1", "+1", "²", "1a", LONG)
    assert [queue_id_of(name) for name in names] == [0, 17, 2147483647, *[None] * 8]


def test_a_config_file_with_a_long_number() -> None:
    with pytest.raises(FormatError, match="not JSON"):
        decode_config(f'{{"offsetTable":{{"a@g":{{0:{LONG}}}}}}}'.encode())


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("007", 7), ("2147483647", 2147483647), ("2147483648", None), ("+1", None), ("-1", None), ("", None),
     ("²", None), ("٣", None), (" 1", None), ("9" * 5000, None)],
)  # fmt: skip
def test_a_name_that_is_a_number(text: str, number: int | None) -> None:
    assert natural_of(text, 32) == number
