"""The content of a container published over MQTT, a record `mqtt_msg`: its property values and body for AMQP 0-9-1.

Source: rabbitmq.md 8.
"""

from __future__ import annotations

from typing import Any

from storage_core.errors import FormatError
from storage_core.formats.rabbitmq.amqp.field_table import Item
from storage_core.formats.rabbitmq.amqp.properties import MOST_SHORT, TRANSIENT_MODE

TAG = "mqtt_msg"
CONTENT_TYPE, CORRELATION, RESPONSE = "Content-Type", "Correlation-Data", "Response-Topic"
USER, EXPIRY, FORMAT = "User-Property", "Message-Expiry-Interval", "Payload-Format-Indicator"
PROPERTIES = (CONTENT_TYPE, CORRELATION, RESPONSE, USER, EXPIRY, FORMAT)
"""Properties that a publisher may set on a message; the format is not passed on to consumers."""
REPLY_TOPIC, CORRELATION_HEADER = b"x-reply-to-topic", b"x-correlation-id"
"""The headers for the response topic, and for correlation data that are not text."""
AS_KEY = {b"/": b".", b"+": b"*"}
"""Translates a topic to a routing key. The translation with the setting `mqtt.sparkplug` is not supported."""
_AS_KEY = bytes.maketrans(*(b"".join(each) for each in (AS_KEY.keys(), AS_KEY.values())))


def converted(content: Any) -> tuple[dict[str, Any], bytes]:
    """Property values, None for those that a message lacks, and body. Raises FormatError."""
    if not isinstance(content, tuple) or len(content) != 9 or content[0] != TAG:
        raise FormatError(0, "the content is not as MQTT leaves it")
    _, _, qos, _, _, _, body, listed, _ = content
    if not isinstance(qos, int) or qos not in {0, 1}:
        raise FormatError(0, f"the quality of service is {qos!r:.40}, neither 0 nor 1")
    if not isinstance(body, bytes) or not isinstance(listed, dict):
        raise FormatError(0, "the payload is not a binary, or the properties are not a map")
    binaries = {name: _binary(name, listed.get(name)) for name in (CONTENT_TYPE, CORRELATION, RESPONSE)}
    kind, correlation, response = binaries.values()
    headers = _user_properties(listed.get(USER, []))
    if response is not None:
        headers.insert(0, (REPLY_TOPIC, "S", response.translate(_AS_KEY)))
    if correlation is not None and not is_short_text(correlation):
        headers.insert(0, (CORRELATION_HEADER, "S", correlation))
        correlation = None
    expiry = listed.get(EXPIRY)
    if EXPIRY in listed and (not isinstance(expiry, int) or expiry >> 64):
        raise FormatError(0, "the expiry is not a number of seconds")
    values = {
        "content_type": kind if kind is not None and is_short_ascii(kind) else None,
        "headers": headers or None,
        "delivery_mode": TRANSIENT_MODE + qos,
        "correlation_id": correlation,
        "expiration": None if expiry is None else str(expiry * 1000).encode(),
    }
    return values, body


def _binary(name: str, value: Any) -> bytes | None:
    if value is not None and not isinstance(value, bytes):
        raise FormatError(0, f"the property {name} is not a binary")
    return value


def is_short_ascii(text: bytes) -> bool:
    """Whether a node accepts `text` as a content type."""
    return len(text) <= MOST_SHORT and text.isascii()


def is_short_text(text: bytes) -> bool:
    """Whether a node accepts `text` as a short string: UTF-8 without zeros."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return len(text) <= MOST_SHORT and b"\0" not in text


def _user_properties(listed: Any) -> list[Item]:
    """The user properties as headers, sorted by name on delivery; those whose name is too long are omitted."""
    if not isinstance(listed, list):
        raise FormatError(0, "the user properties are not a list")
    if not all(isinstance(each, tuple) and len(each) == 2 and isinstance(each[0], bytes) for each in listed):
        raise FormatError(0, "a user property is not a name and a value")
    if not all(isinstance(value, bytes) for _, value in listed):
        raise FormatError(0, "a user property is not a name and a value")
    return [(name, "S", value) for name, value in listed if len(name) <= MOST_SHORT]
