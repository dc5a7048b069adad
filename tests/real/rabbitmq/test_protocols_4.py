"""Real nodes of RabbitMQ 4: messages received over AMQP 1.0 and MQTT are read as nodes deliver them over AMQP 0-9-1."""

from __future__ import annotations

import random
import shutil
import time
from functools import partial
from math import isfinite
from pathlib import Path
from typing import Any

import pytest

from storage_core.errors import FormatError
from storage_core.formats.rabbitmq.amqp import sections
from storage_core.formats.rabbitmq.erlang.external_term import Atom
from storage_core.formats.rabbitmq.message import basic_message
from storage_core.formats.rabbitmq.message.basic_message import MessageError, Reach
from storage_core.formats.rabbitmq.message.converted.container_view import View
from storage_core.formats.rabbitmq.stream_queues import delivered
from tests.rabbitmq import amqp10, amqp10_random, quorum_golden
from tests.real.rabbitmq.amqp import Client
from tests.real.rabbitmq.amqp10_sender import Sender, to_queue
from tests.real.rabbitmq.container_oracle import Converted, ask
from tests.real.rabbitmq.history_4 import check_published, check_store
from tests.real.rabbitmq.node_4 import FROM_4_ON, LATER, ROUNDS, Node4
from tests.real.rabbitmq.protocol_history import PLUGINS, ProtocolHistory
from tests.real.rabbitmq.quorum_compared import differing, drained
from tests.real.rabbitmq.quorum_history import SETTLE_S
from tests.real.rabbitmq.stream_compared import as_later, compare
from tests.real.rabbitmq.stream_protocol import StreamClient
from tests.support.free_ports import free_port
from tests.support.sampling import SEED

OF_A_ROUND = 300
OF_SHAPES = 10
"""How many messages may be decoded one at a time to find out whether a shape is one of valid terms."""
pytestmark = [pytest.mark.real, pytest.mark.timeout(0), LATER]
NOTHING = b"\xe0\2\3\x41"
WITHOUT_BYTES = [
    amqp10.section(code, amqp10.listed(0xC1, pairs)) + amqp10.section(0x75, amqp10.counted(0xA0, b"body"))
    for code, kind in ((0x72, 0xA3), (0x74, 0xA1))
    for pairs in (
        [amqp10.counted(kind, b"x-a"), NOTHING, amqp10.counted(kind, b"x-b"), amqp10.listed(0xC0, [NOTHING, b"\x41"])],
        [amqp10.counted(kind, b"x-m"), amqp10.listed(0xC1, [amqp10.counted(0xA1, b"k"), NOTHING])],
    )
]
"""Messages with arrays of three `true`, which occupy no bytes."""
OF_EACH = pytest.mark.parametrize("release", FROM_4_ON)


@OF_EACH
def test_stores_with_messages_of_all_protocols(release: type[Node4]) -> None:
    for number in range(-(-ROUNDS // 5)):
        history = ProtocolHistory(f"{SEED} {number}", release)
        try:
            history.work()
            history.end(clean=number % 2 == 0)
            check_store(history, f"{SEED} {number}")
            history.node.start()
            history.work()
            history.end(clean=number % 2 == 1)
            check_store(history, f"{SEED} {number}, once more")
        finally:
            history.node.remove()


@OF_EACH
def test_usual_messages_are_decoded_in_bulk(release: type[Node4], alone: list[bytes]) -> None:
    history = ProtocolHistory(f"usual {SEED}", release)
    check_published(history, partial(history.usual, 100), True, str(SEED))
    assert len(alone) < OF_SHAPES


def noted(r: random.Random) -> dict[Any, Any]:
    """Annotations that a broker adds to a message later."""
    found: dict[Any, Any] = {}
    if r.random() < 0.3:
        found[Atom("ttl")] = r.choice((Atom("undefined"), 5))
    if r.random() < 0.3:
        found[Atom("p")] = r.randrange(256)
    if r.random() < 0.3:
        found[b"x-delivery-count"] = r.choice((5, b"text", Atom("true")))
    if r.random() < 0.3:
        times = {Atom("first_time"): 5999, Atom("last_time"): 6000}
        if r.random() < 0.5:
            times[Atom("ttl")] = 60
        found[Atom("deaths")] = [((b"q", Atom("expired")), (Atom("death"), b"ex", [b"k", b"l"], 2, times))]
    return found


def mqtt_message(r: random.Random) -> tuple[Any, ...]:
    text = amqp10_random.text
    names = b"a", b"x-a", b"k" * 300, b"x-correlation-id", b"x-reply-to-topic"
    mqtt_properties: dict[str, Any] = {
        "Content-Type": r.choice((b"text/plain", text(r), b"a" * 300)),
        "Correlation-Data": r.choice((r.randbytes(8), text(r), b"a" * 300, b"", b"a\0b")),
        "Response-Topic": r.choice((b"a/b/+", text(r), b"x.y/z")),
        "User-Property": [(r.choice(names), text(r, 400)) for _ in range(r.randrange(5))],
        "Message-Expiry-Interval": r.choice((0, 1, (1 << 32) - 1)),
    }
    kept = {Atom(name): mqtt_properties[name] for name in r.sample([*mqtt_properties], r.randrange(6))}
    body = r.randbytes(r.choice((0, 5, 300)))
    return Atom("mqtt_msg"), Atom("false"), r.randrange(2), b"a/b", Atom("false"), 1, body, kept, Atom("undefined")


def check(converted: Converted, wanted: tuple[bytes, bytes] | FormatError) -> None:
    if isinstance(wanted, FormatError):
        assert converted.why, wanted
        assert isinstance(wanted, MessageError)
        assert wanted.reach in {Reach.OTHER_PROTOCOLS, Reach.RECOVERY}
    else:
        assert (converted.why, converted.properties, converted.body) == ("", *wanted)


def of_queue(term: bytes) -> tuple[bytes, bytes] | FormatError:
    try:
        found = basic_message.decode(term)
    except FormatError as error:
        return error
    return found.properties, found.body


def holds_raw(message: bytes) -> bool:
    """Whether a header in a message is, or contains, something that Erlang has no value for."""
    view = View.of_sections(message, sections.parse(message))
    return any(is_raw(each) for pair in (*view.noted, *view.applied) for each in pair)


def is_raw(value: sections.Value) -> bool:
    kind, inner = value
    if kind == "map":
        return any(is_raw(each) for pair in inner for each in pair)
    if kind in {"list", "array"}:
        return any(map(is_raw, inner))
    return kind in {*sections.DECIMALS, sections.WIDTHLESS} or (isinstance(inner, float) and not isfinite(inner))


@OF_EACH
def test_what_a_node_converts(release: type[Node4]) -> None:
    """Any message that it stores, including those for which the process of a consumer fails."""
    node, r = release(), random.Random(SEED)
    (node.folder / "enabled_plugins").write_text(PLUGINS)
    count = OF_A_ROUND * ROUNDS
    try:
        node.start()
        amqp = [(amqp10_random.message(r, 5, r.choice((0, 0.1))), noted(r)) for _ in range(count)]
        mqtt = [(mqtt_message(r), noted(r)) for _ in range(count)]
        if not node.fails_at_raw:
            amqp += [(message, {}) for message in WITHOUT_BYTES]
        answers = [*ask(node, "mc_amqp", amqp), *ask(node, "mc_mqtt", mqtt)]
        streamed = ask(node, "mc_amqp", [(message, {}) for message, _ in amqp], stored=False)
    finally:
        node.remove()
    assert sum(bool(converted.why) for converted in answers) > count // 50
    for number, converted in enumerate(answers):
        assert converted.stored is not None
        wanted = of_queue(converted.stored)
        if converted.why and node.fails_at_raw and not isinstance(wanted, FormatError):
            assert holds_raw(amqp[number][0])
        else:
            check(converted, wanted)
    for (message, _), converted in zip(amqp, streamed, strict=True):
        found = delivered.delivered(message, of_3_13=True)
        if not converted.why:
            body = b"".join(message[start:stop] for start, stop in found.body)
            expected = as_later(node, converted.properties, found.properties)
            assert (found.properties, body) == (expected, converted.body), message


def _is_taken(node: Node4, message: bytes) -> bool:
    """Whether a stream accepts a message; one of 4.0.5 fails on an annotation that is null."""
    try:
        with Sender(node.port) as sender:
            sender.send(to_queue("s"), message)
    except ConnectionError:
        return False
    return True


def test_a_quorum_queue_that_was_written_by_amqp_1_0(tmp_path: Path) -> None:
    """Some messages were returned by a consumer that is gone."""
    node, r = Node4(), random.Random(SEED)
    try:
        node.start()
        node.declare("q", "quorum")
        with Sender(node.port) as sender:
            for _ in range(OF_A_ROUND):
                sender.send(to_queue("q"), amqp10_random.message(r, r.choice((0, 5, 3000))))
        with Client(node.port) as client:
            for _ in range(OF_A_ROUND // 10):
                client.get("q")
        time.sleep(SETTLE_S)
        node.kill()
        copy = tmp_path / "copy"
        shutil.copytree(node.vhosts.parents[1] / "quorum", copy)
        (folder,) = copy.iterdir()
        found = quorum_golden.delivered(quorum_golden.rows(folder))
        node.start()
        time.sleep(SETTLE_S)
        expected = drained(node, ["q"])
    finally:
        node.remove()
    assert not differing(found, expected)
    assert len(found["/", "q"]) == OF_A_ROUND


@OF_EACH
def test_a_stream_that_was_written_by_amqp_1_0(release: type[Node4]) -> None:
    node, r = release(), random.Random(SEED)
    try:
        node.start()
        node.declare("s", "stream")
        taken = sum(_is_taken(node, amqp10_random.message(r, r.choice((0, 30, 5000)))) for _ in range(OF_A_ROUND))
        compare(node, "s", taken)
    finally:
        node.remove()
    assert taken > OF_A_ROUND // 2


@OF_EACH
def test_a_stream_that_was_written_by_its_own_protocol(release: type[Node4]) -> None:
    """Most messages have no header section, also those in sub-batches. None has x-cc: a node fails at an empty one."""
    port, r = free_port(), random.Random(SEED)
    made = (amqp10_random.message(r, r.choice((0, 30, 5000))) for _ in range(2 * OF_A_ROUND))
    messages = [message for message in made if b"x-cc" not in message]
    node = release(f"[{{rabbitmq_stream,[{{tcp_listeners,[{port}]}}]}}].")
    (node.folder / "enabled_plugins").write_text("[rabbitmq_stream].")
    try:
        node.start()
        node.declare("s", "stream")
        client = StreamClient(port)
        client.publisher(0, "publisher", "s")
        entries = [messages[at] if at % 3 else (0, messages[at : at + 1]) for at in range(len(messages))]
        client.publish(0, 1, entries)
        client.confirmed()
        client.close()
        compare(node, "s", len(messages))
    finally:
        node.remove()
