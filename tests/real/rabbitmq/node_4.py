"""A throw-away node of RabbitMQ 4: the package of the next Debian, in a root of its own below the checkout's cache.

Needs root, `debootstrap` and a minute, once.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from tests.real.rabbitmq.node import Node
from tests.support.cache import CACHE

SUITE = "trixie"
INSTALL = """
set -e
debootstrap --variant=minbase "$0" "$1" >&2
printf '#!/bin/sh\\nexit 101\\n' > "$1/usr/sbin/policy-rc.d"
chmod +x "$1/usr/sbin/policy-rc.d"
DEBIAN_FRONTEND=noninteractive chroot "$1" apt-get install -q -y --no-install-recommends rabbitmq-server >&2
"""
INSIDE = 'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"'


def installed() -> Path:
    """The root with the node's package, made on first use."""
    root = CACHE / "rabbitmq-4"
    if not root.exists():
        CACHE.mkdir(exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=CACHE))
        try:
            subprocess.run(["sh", "-c", INSTALL, SUITE, str(made)], check=True)
            made.chmod(0o755)
            made.rename(root)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
    return root


class Node4(Node):
    """The same with RabbitMQ 4, with an `advanced` config."""

    def __init__(self, advanced: str = "[].") -> None:
        self.root = installed()
        super().__init__(Path(tempfile.mkdtemp(prefix="node-", dir=self.root / "var" / "tmp")))
        (self.folder / "advanced.config").write_text(advanced)

    def _environment(self, home: Path) -> dict[str, str]:
        outside = {**super()._environment(home), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        return {name: value.replace(str(self.root), "") for name, value in outside.items()}

    def _command(self, program: str, *arguments: str) -> list[str]:
        return ["unshare", "--mount", "sh", "-c", INSIDE, str(self.root), program, *arguments]

    def remove(self) -> None:
        """Ends it, and removes all of it."""
        self.kill()
        shutil.rmtree(self.folder)
