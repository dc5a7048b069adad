"""Throw-away nodes of later releases: the packages of other systems, each in its own root directory below the cache.

Each needs root privileges, `debootstrap` and a minute, once.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pika
import pytest

from tests.real.rabbitmq.node import Node
from tests.support.cache import CACHE

ROUNDS = int(os.environ.get("MQSTORE_RELEASE_4", "0"))
LATER = pytest.mark.skipif(
    not ROUNDS, reason="make test-real-full installs RabbitMQ 3.12 and 4 (MQSTORE_RELEASE_4: rounds)"
)
"""The mark of tests that need a later release."""
INSTALL = """
set -e
suite="$0" root="$1"
scripts=/usr/share/debootstrap
if [ ! -e "$scripts/scripts/$suite" ]; then
    # A later release of a system that debootstrap knows; Debian has no keys of it.
    cp -r "$scripts" "$root.scripts"
    ln -s "$2" "$root.scripts/scripts/$suite"
    export DEBOOTSTRAP_DIR="$root.scripts"
    checks=--no-check-gpg
fi
debootstrap --variant=minbase $checks "$suite" "$root" >&2
rm -rf "$root.scripts"
[ -e "$root/etc/hosts" ] || printf '127.0.0.1 localhost\n' > "$root/etc/hosts"
printf '#!/bin/sh\nexit 101\n' > "$root/usr/sbin/policy-rc.d"
chmod +x "$root/usr/sbin/policy-rc.d"
DEBIAN_FRONTEND=noninteractive chroot "$root" apt-get install -q -y --no-install-recommends rabbitmq-server >&2
"""
INSIDE = 'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"'


def installed(suite: str, folder: str, like: str) -> Path:
    """The root directory with the node's package of a system release, made on first use. `like` is a release whose
    script debootstrap uses if it does not know this one.
    """
    root = CACHE / folder
    if not root.exists():
        CACHE.mkdir(exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=CACHE))
        try:
            subprocess.run(["sh", "-c", INSTALL, suite, str(made), like], check=True)
            made.chmod(0o755)
            made.rename(root)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
    return root


class Node4(Node):
    """A node of RabbitMQ 4, with an `advanced` config."""

    package = "trixie", "rabbitmq-4", "sid"
    adds_mode = True
    """Whether a message of a stream that does not state whether it is durable is delivered as persistent."""
    knows_version_1 = True
    """Whether it serves classic queues of version 1."""
    fails_at_raw = True
    """Whether it fails on a header that Erlang has no value for, which later releases omit."""
    refuses_odd = False
    """Whether it refuses AMQP 1.0 messages with duplicate sections, or with several kinds in a body."""

    def __init__(self, advanced: str = "[].") -> None:
        self.root = installed(*self.package)
        super().__init__(Path(tempfile.mkdtemp(prefix="node-", dir=self.root / "var" / "tmp")))
        (self.folder / "advanced.config").write_text(advanced)

    def inside(self, path: Path) -> Path:
        """A path below the node's folder as the node sees it."""
        return Path("/") / path.relative_to(self.root)

    def declare(self, queue: str, kind: str) -> None:
        """Declares a queue of a type on the running node."""
        connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", self.port, heartbeat=0))
        connection.channel().queue_declare(queue, durable=True, arguments={"x-queue-type": kind})
        connection.close()

    def _environment(self, home: Path) -> dict[str, str]:
        outside = {**super()._environment(home), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        return {name: value.replace(str(self.root), "") for name, value in outside.items()}

    def _command(self, program: str, *arguments: str) -> list[str]:
        return ["unshare", "--mount", "sh", "-c", INSIDE, str(self.root), program, *arguments]


class Node312(Node4):
    """A node of RabbitMQ 3.12, with all of its feature flags."""

    package = "noble", "rabbitmq-3.12", "jammy"

    def start(self, seconds: float = 120) -> None:
        """Starts it. Raises RuntimeError with its last output if it does not come up."""
        super().start(seconds)
        self.ctl("enable_feature_flag", "all")


class Node43(Node4):
    """A node of RabbitMQ 4.3, whose metadata is in Khepri."""

    package = "forky", "rabbitmq-4.3", "sid"
    adds_mode = fails_at_raw = knows_version_1 = False
    refuses_odd = snapshots_hold_messages = revives_quiescing = True


FROM_4_ON = (Node4, Node43)
