"""A Kafka broker on this machine, one node without ZooKeeper, and the jars of Spark's Kafka connector.

Maven fetches both once, according to its settings, to `.cache/kafka` of the checkout; if that fails, `missing` has the
reason.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
from pathlib import Path
from time import monotonic, sleep
from types import TracebackType
from typing import Self

from tests.support.free_ports import free_ports

HERE = Path(__file__).resolve().parent
JARS = HERE.parent / ".cache" / "kafka"
OF_SPARK = ("spark-sql-kafka-", "spark-token-provider-kafka-", "kafka-clients-", "commons-pool2-")
"""Name prefixes of the jars that Spark itself lacks."""
CLUSTER = "bXFzdG9yZS1iZW5jaG1hcmsx"
READY_S = 60.0
SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{broker},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{broker}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={folder}/log
num.partitions=4
offsets.topic.replication.factor=1
auto.create.topics.enable=true
"""


class KafkaBroker:
    """A context manager for the broker's process. `missing` is the reason if there is none, otherwise empty."""

    def __init__(self, folder: Path) -> None:
        """The broker keeps all of its files in the new folder `folder`. A topic gets four partitions on first use."""
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self.address = ""
        self.missing = _fetched()

    @property
    def connector(self) -> list[Path]:
        """The jars that a Spark session needs."""
        return sorted(jar for jar in JARS.glob("*.jar") if jar.name.startswith(OF_SPARK))

    def __enter__(self) -> Self:
        if self.missing:
            return self
        self._folder.mkdir()
        broker, controller = free_ports(2)
        settings = self._folder / "server.properties"
        settings.write_text(SETTINGS.format(broker=broker, controller=controller, folder=self._folder))
        java = ["java", "-Xmx1g", "-cp", f"{JARS}/*"]
        made = subprocess.run(
            [*java, "kafka.tools.StorageTool", "format", "-t", CLUSTER, "-c", str(settings)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        if made.returncode:
            self.missing = f"Kafka's folder cannot be made: {(made.stderr or made.stdout).strip().splitlines()[-1]}"
            return self
        with open(self._folder / "output", "wb") as output:
            self._process = subprocess.Popen([*java, "kafka.Kafka", str(settings)], stdout=output, stderr=output)
        self.address = f"127.0.0.1:{broker}"
        self._wait(broker)
        return self

    def _wait(self, port: int) -> None:
        process, until = self._process, monotonic() + READY_S
        while process is not None:
            if process.poll() is not None or monotonic() > until:
                self.missing = f"Kafka's broker did not start: {_last_line(self._folder / 'output')}"
                return
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return
            sleep(0.2)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def _fetched() -> str:
    """Makes Maven fetch the jars if they are missing. Returns the reason if that fails, otherwise an empty text."""
    if any(JARS.glob("kafka_*.jar")):
        return ""
    if not shutil.which("mvn") or not shutil.which("java"):
        return "there is no mvn or no java on the PATH"
    staging = JARS.with_name("kafka.new")
    shutil.rmtree(staging, ignore_errors=True)
    found = subprocess.run(
        ["mvn", "-q", "-B", "-f", str(HERE / "java" / "kafka" / "pom.xml"), "dependency:copy-dependencies",
         f"-DoutputDirectory={staging}", "-DincludeScope=runtime"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if found.returncode:
        return f"Maven has not got the jars: {(found.stdout or found.stderr).strip().splitlines()[0]}"
    staging.rename(JARS)
    return ""


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").splitlines()
    return lines[-1] if lines else "it printed nothing"
