"""Planning and reading load nothing that only writes, checks, repairs, views or streams need. It would cost a process a
tenth of a second in its first call, and half of one where Python keeps no bytecode.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.golden import archive
from tests.rabbitmq import golden

ROOT = Path(__file__).parents[2]
CODE = """
import sys
from storage_core import open_store
from storage_core.store import ScanRequest

with open_store(sys.argv[1]) as store:
    rows = sum(batch.num_rows for piece in store.snapshot().plan(ScanRequest()) for batch in piece.read())
print(rows, *sys.modules)
"""
ALSO_OPTIONS_OF_A_STORE = {"storage_core.rocketmq.write", "storage_core.rocketmq.write.options"}


def modules_of_a_read(path: Path) -> set[str]:
    done = subprocess.run([sys.executable, "-c", CODE, str(path)], capture_output=True, text=True, check=True, cwd=ROOT)
    rows, *loaded = done.stdout.split()
    assert int(rows) > 0
    return {name for name in loaded if name.startswith("storage_core.")}


def beginning(loaded: set[str], engine: str, *folders: str) -> set[str]:
    heads = tuple(f"storage_core.{engine}.{folder}" for folder in folders)
    return {name for name in loaded if name.startswith(heads)}


def test_reading_a_rocketmq_store_loads_only_what_reads(tmp_path: Path) -> None:
    loaded = modules_of_a_read(archive.unpack("mixed-4.9.3", tmp_path))
    assert beginning(loaded, "rocketmq", "recovery", "read.queue_partition")
    others = beginning(loaded, "rocketmq", "write", "verify", "repair", "views", "stream")
    assert others - ALSO_OPTIONS_OF_A_STORE == set()
    assert beginning(loaded, "rabbitmq", "read") == set()


def test_reading_a_vhost_loads_only_what_reads(tmp_path: Path) -> None:
    loaded = modules_of_a_read(golden.unpack("s1_mixed_clean_idle", tmp_path) / golden.DEFAULT_VHOST)
    assert beginning(loaded, "rabbitmq", "read.partition", "index")
    assert beginning(loaded, "rabbitmq", "write", "verify", "repair", "views", "stream.", "queue.") == set()
    assert beginning(loaded, "rocketmq", "read") == set()
