"""Messages that a node of RabbitMQ 3.10 keeps in another form than it received them, in queues of version 2."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any, ClassVar

import pika

from tests.real.rabbitmq.history_4 import QUEUES, VHOST, History
from tests.real.rabbitmq.node import Node
from tests.real.rabbitmq.protocol_history import task_properties

FRAME_SIZE = 4096
"""The frame size of clients for Node.js, which is the smallest."""


class Node310(Node):
    """A node from Debian's package, with an `advanced` config."""

    def __init__(self, advanced: str = "[].") -> None:
        super().__init__(Path(tempfile.mkdtemp(prefix="node-")))
        (self.folder / "advanced.config").write_text(advanced)


class UsualHistory(History):
    """A node with the three queues in version 2."""

    arguments: ClassVar[dict[str, Any]] = {"x-queue-version": 2}

    def __init__(self, seed: int | str) -> None:
        super().__init__(seed, Node310)

    def usual(self, count: int) -> None:
        """Publishes `count` messages to each queue: Celery tasks that have expired in another queue, bodies in two
        pieces, and tasks copied to the queue through a blind carbon copy (BCC) list.
        """
        dead, pieces, copies = QUEUES
        parameters = pika.ConnectionParameters("127.0.0.1", self.node.port, VHOST, heartbeat=0, frame_max=FRAME_SIZE)
        with pika.BlockingConnection(parameters) as connection:
            channel = connection.channel()
            channel.confirm_delivery()
            dies = {"x-message-ttl": 1, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": dead}
            channel.queue_declare("dying", durable=True, arguments=dies)
            for number in range(count):
                message_properties = task_properties(self.r, number)
                channel.basic_publish("", "dying", self.r.randbytes(200), message_properties)
                channel.basic_publish("", pieces, self.r.randbytes(50) * 100, message_properties)
                message_properties.headers = {**message_properties.headers, "BCC": [copies]}
                channel.basic_publish("", "nowhere", self.r.randbytes(200), message_properties)
            deadline = time.monotonic() + 60
            while channel.queue_declare(dead, passive=True).method.message_count < count:
                assert time.monotonic() < deadline, "the messages do not die"
                time.sleep(0.1)
            channel.queue_delete("dying")
