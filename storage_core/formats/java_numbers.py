"""Whole numbers as Java reads them from text, and whether one fits into its types."""

from __future__ import annotations

MOST_DIGITS = 19
"""The digits of the largest long: a number with more of them, not counting leading zeros, fits into no type."""


def fits(number: int, bits: int) -> bool:
    """Whether a signed type of so many bits holds the number."""
    return -(1 << bits - 1) <= number < 1 << bits - 1


def whole_of(text: str, bits: int) -> int | None:
    """The number that `Short.parseShort` (16 bits), `Integer.parseInt` (32) or `Long.parseLong` (64) reads from a text.

    None for a text that they refuse.
    """
    sign, digits = (text[:1], text[1:]) if text[:1] in ("+", "-") else ("", text)
    if not digits.isdecimal():
        return None
    # Python refuses to convert a text of thousands of digits.
    digits = digits.lstrip("0") or "0"
    number = int(sign + digits) if len(digits) <= MOST_DIGITS else None
    return number if number is not None and fits(number, bits) else None


def natural_of(text: str, bits: int) -> int | None:
    """The same for a text that has no sign and ASCII digits alone."""
    return whole_of(text, bits) if text.isascii() and text.isdigit() else None
