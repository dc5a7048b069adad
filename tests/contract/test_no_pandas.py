"""Reading does not load pandas, which would cost 60 MB and a third of a second in each worker's first task."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.golden import archive
from tests.rabbitmq import golden

ROOT = Path(__file__).parents[2]
CODE = """
import sys
from storage_core import open_store
from storage_core.store import Mode, Scan, ScanRequest

rows = 0
with open_store(sys.argv[1]) as store:
    for scan in (Scan.QUEUES, Scan.LOG) if store.engine == "rocketmq" else (Scan.QUEUES,):
        for piece in store.snapshot().plan(ScanRequest(scan=scan, mode=Mode.PERMISSIVE)):
            rows += sum(batch.num_rows for batch in piece.read())
loaded = "pandas" in sys.modules
import pandas
print(rows, loaded)
"""


def stores(folder: Path) -> list[Path]:
    vhosts = [
        golden.unpack(name, folder / name) / golden.DEFAULT_VHOST
        for name in ("s1_mixed_clean_idle", "v43_usual_clean", "v43_protocols_kill9")
    ]
    return [archive.unpack("mixed-4.9.3", folder / "rocketmq"), *vhosts]


@pytest.mark.parametrize("setting", ["never", "always"])
def test_reading_every_column_loads_no_pandas(tmp_path: Path, setting: str) -> None:
    for path in stores(tmp_path):
        done = subprocess.run(
            [sys.executable, "-c", CODE, str(path)],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
            env={**os.environ, "MQSTORE_COMPILED": setting},
        )
        rows, loaded = done.stdout.split()
        assert int(rows) > 20
        assert loaded == "False", path


def test_no_type_is_asked_of_pandas() -> None:
    """PyArrow before 24 imports pandas for it, and fails if it is not installed."""
    found = [path for room in ("storage_core", "connector", "command_line") for path in (ROOT / room).rglob("*.py")]
    assert len(found) > 300
    assert [str(path) for path in found if "to_pandas_dtype(" in path.read_text()] == []
