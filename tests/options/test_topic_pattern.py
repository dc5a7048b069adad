"""Java's regular expressions in Python's spelling; expectations follow java.util.regex.Pattern's documentation."""

from __future__ import annotations

import re

import pytest

from storage_core.errors import OptionError
from storage_core.options.topic_pattern import java_pattern


@pytest.mark.parametrize(
    ("pattern", "matches", "others"),
    [
        ("orders", ["orders"], ["orders2", "my-orders"]),
        ("or.*|pay.*", ["orders", "payments"], ["shipments"]),
        (r"\Q%DLQ%\E.*", ["%DLQ%mailer"], ["DLQmailer"]),
        (r"\Qa.b", ["a.b"], ["axb"]),
        (r"(?i)ORDERS", ["orders", "OrDers"], ["order"]),
        (r"(?<word>ab)\k<word>", ["abab"], ["ab", "abcd"]),
        (r"\p{Lower}+\p{Digit}", ["abc1"], ["Abc1", "abc"]),
        (r"[\p{Upper}_]+", ["SCHEDULE_TOPIC"], ["a"]),
        (r"\P{Alpha}+", ["123"], ["a1"]),
        (r"\d+", ["12"], ["١٢"]),
        (r"\w+", ["ab_1"], ["é"]),
        (r"a++b", ["aab"], ["b"]),
        (r"[^]a]+", ["bc"], ["a", "]"]),
        (r"orders\z", ["orders"], ["orders1"]),
        (r"(?=o)orders\Z", ["orders"], []),
        (r"\\d", [r"\d"], ["1"]),
    ],
)
def test_matches_as_in_java(pattern: str, matches: list[str], others: list[str]) -> None:
    compiled = re.compile(java_pattern("topicPattern", pattern))
    assert [name for name in matches if not compiled.fullmatch(name)] == []
    assert [name for name in others if compiled.fullmatch(name)] == []


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("orders[", "is not a regular expression that mqstore can use: unterminated character set"),
        ("(a", "is not a regular expression that mqstore can use: missing ), unterminated subpattern"),
        ("a{2,1}", "is not a regular expression that mqstore can use: min repeat greater than max repeat"),
        ("[a-z&&[^b]]", "uses && in a character class, which mqstore does not support"),
        ("[a[b]]", "uses a character class inside another, which mqstore does not support"),
        (r"\p{IsGreek}", r"uses \p{IsGreek}, which mqstore does not support"),
        (r"\R", r"uses \R, which mqstore does not support"),
    ],
)
def test_what_cannot_be_expressed_is_refused(pattern: str, reason: str) -> None:
    with pytest.raises(OptionError) as caught:
        java_pattern("topicPattern", pattern)
    assert str(caught.value).startswith(f"OptionError: option 'topicPattern' = '{pattern}': {reason}")
