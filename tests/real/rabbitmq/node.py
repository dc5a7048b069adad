"""A throw-away RabbitMQ node with its own directories and its own epmd; needs Debian's rabbitmq-server."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from tests.support.free_ports import free_port

BIN = Path("/usr/lib/rabbitmq/bin")
LOOPBACK = "-kernel inet_dist_use_interface {127,0,0,1}"


class Node:
    """A node called `name` below `folder`. `start` waits until it answers; `stop` and `kill` end it and its epmd."""

    revives_quiescing = False
    """Whether a single active consumer that was giving way is revived, so that its queue comes to a standstill."""
    snapshots_hold_messages = False
    """Whether it takes snapshots of quorum queues that hold messages, and keeps the entries of these messages."""

    def __init__(self, folder: Path, name: str = "mqstore", conf: str = "") -> None:
        self.folder, self.name, self.port = folder, name, free_port()
        home = folder / "home"
        home.mkdir(parents=True, exist_ok=True)
        cookie = home / ".erlang.cookie"
        if not cookie.exists():
            cookie.write_text("LOOPBACKONLY")
            cookie.chmod(0o400)
        (folder / "rabbitmq.conf").write_text("loopback_users.guest = true\nnum_acceptors.tcp = 4\n" + conf)
        (folder / "advanced.config").write_text("[].")
        (folder / "enabled_plugins").write_text("[].")
        self.epmd_port = free_port()
        self.environment = self._environment(home)
        self.process: subprocess.Popen[bytes] | None = None
        self.epmd: subprocess.Popen[bytes] | None = None

    def _environment(self, home: Path) -> dict[str, str]:
        folder = self.folder
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "RABBITMQ_NODENAME": f"{self.name}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(folder / "generated"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(self.epmd_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": LOOPBACK,
            "RABBITMQ_CTL_ERL_ARGS": LOOPBACK,
        }

    @property
    def vhosts(self) -> Path:
        """The folder of the node's vhost directories."""
        return self.folder / "mnesia" / f"{self.name}@localhost" / "msg_stores" / "vhosts"

    def start(self, seconds: float = 120) -> None:
        """Starts it. Raises RuntimeError with its last output if it does not come up."""
        if self.epmd is None:
            self.epmd = subprocess.Popen(self._command("epmd"), env=self.environment, stdin=subprocess.DEVNULL)
        with (self.folder / "stdout.log").open("ab") as log:
            self.process = subprocess.Popen(
                self._command(str(BIN / "rabbitmq-server")),
                env=self.environment,
                cwd=self.folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        deadline = time.monotonic() + seconds
        while self._ctl("await_startup", "--timeout", "15").returncode:
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError((self.folder / "stdout.log").read_text()[-3000:])
            time.sleep(0.5)

    def inside(self, path: Path) -> Path:
        """A path below the node's folder as the node sees it."""
        return path

    def _command(self, program: str, *arguments: str) -> list[str]:
        return [program, *arguments]

    def _ctl(self, *arguments: str, seconds: float = 600) -> subprocess.CompletedProcess[str]:
        command = self._command(str(BIN / "rabbitmqctl"), *arguments)
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=seconds, check=False
        )

    def ctl(self, *arguments: str) -> str:
        """What rabbitmqctl prints. Raises RuntimeError if it fails."""
        done = self._ctl(*arguments)
        if done.returncode:
            raise RuntimeError(f"rabbitmqctl {arguments[0]}: {done.stdout} {done.stderr}")
        return done.stdout.strip()

    def eval(self, expression: str) -> str:
        """The value of an Erlang expression inside the node, as text."""
        return self.ctl("eval", expression)

    def stop(self) -> None:
        """Stops cleanly."""
        if self.process is not None:
            self._ctl("stop", seconds=180)
            self.process.wait(60)
        self._end()

    def kill(self) -> None:
        """Kills it without a chance to write."""
        if self.process is not None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self._end()

    def remove(self) -> None:
        """Kills it, and removes all its files."""
        self.kill()
        shutil.rmtree(self.folder)

    def end(self, clean: bool) -> None:
        """Stops it cleanly, or kills it."""
        if clean:
            self.stop()
        else:
            self.kill()

    def _end(self) -> None:
        self.process = None
        if self.epmd is not None:
            self.epmd.terminate()
            self.epmd.wait()
            self.epmd = None
