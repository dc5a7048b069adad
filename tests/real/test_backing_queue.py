"""Random scripts, run by the real rabbit_variable_queue (3.10.8) and by the replay: every line is equal.

`MQSTORE_SCRIPTS` sets how many, `MQSTORE_SEED` the first seed. A failure prints the script's name, which contains
its seed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rabbitmq.traces import answers, differences
from tests.real.rabbitmq.backing_queue import BackingQueue
from tests.real.rabbitmq.node import Node
from tests.real.rabbitmq.scripts import KINDS, script

pytestmark = pytest.mark.real

FIRST_SEED = int(os.environ.get("MQSTORE_SEED", "20261121"))
COUNT = int(os.environ.get("MQSTORE_SCRIPTS", "20"))
AT_ONCE = 14


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BackingQueue]:
    folder = tmp_path_factory.mktemp("backing-queue")
    node = Node(folder / "node")
    node.start()
    yield BackingQueue(node, folder)
    node.stop()


def write_script(seed: int, folder: Path) -> Path:
    """Writes a script of the kind and the flavour that its seed selects."""
    kinds = list(KINDS)
    kind, flavour = kinds[seed % len(kinds)], seed // len(kinds) % 3
    lazy, restart = flavour == 1, flavour == 2
    path = folder / f"{kind}-{seed}{'-lazy' if lazy else ''}{'-restart' if restart else ''}.script"
    path.write_text(script(kind, seed, lazy=lazy, restart=restart))
    return path


@pytest.mark.parametrize("start", range(FIRST_SEED, FIRST_SEED + COUNT, AT_ONCE))
def test_the_replay_answers_as_the_real_queue(queue: BackingQueue, start: int, tmp_path: Path) -> None:
    scripts = [write_script(seed, tmp_path) for seed in range(start, min(start + AT_ONCE, FIRST_SEED + COUNT))]
    for path, answered in zip(scripts, queue.run(scripts), strict=True):
        lines = answers(answered)
        found = differences(path.read_text(), lines, tmp_path / path.stem)
        assert found == [], f"{path.name}\n" + "\n".join(found)
        assert len(lines) > 60, path.name
