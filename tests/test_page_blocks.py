"""Every Python, SQL and shell block on the pages runs as printed, and prints the output that the page shows.

`tests/support/page_blocks.py` has the one rule for paths, and the table of programs that are not run.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from storage_core import open_store
from tests.golden import archive
from tests.rabbitmq import golden
from tests.support import page_blocks
from tests.support.page_blocks import NOT_RUN, Block, blocks, program, run_python, run_shell, statements

PYTHON, SQL, SHELL = blocks("python"), blocks("sql"), blocks("sh")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The stores that the pages name. No block may change them."""
    root = tmp_path_factory.mktemp("pages")
    for target, name in (
        ("backup/broker-a", "shop-4.9.3"),
        ("backup/broker-b", "broker-5.3.3"),
        ("disks/dead-broker", "damaged-flipped-body-abort-4.9.3"),
    ):
        archive.unpack(name, root / target)
    golden.unpack("s13_rdqbadmark_kill9", root / "disks" / "dead-node")
    node = root / "node" / "rabbit@host"
    shutil.copytree(golden.SNAPSHOTS.parent / "node" / "clean", node)
    _write_vhost(node / "msg_stores" / "vhosts" / golden.DEFAULT_VHOST)
    before = archive.fingerprint(root)
    yield root
    shutil.rmtree(root / "data", ignore_errors=True)
    shutil.rmtree(root / "bin", ignore_errors=True)
    after = archive.fingerprint(root)
    assert {name for name in after if after[name] != before.get(name)} <= {"."}
    assert before.keys() == after.keys()


def _write_vhost(target: Path) -> None:
    """Writes the vhost used on the pages, with the queues orders and payments."""
    with open_store(str(target), "rabbitmq") as store:
        for queue in ("orders", "payments"):
            bodies = [f'{{"order": {number}}}' for number in range(100)]
            ids = [f"{queue}-{number}" for number in range(100)]
            store.append(pa.table({"body": bodies, "messageId": ids}), queue=queue)


@pytest.fixture
def root(folders: Path) -> Path:
    page_blocks.fresh_data(folders)
    return folders


def compare(block: Block, printed: str) -> None:
    if block.printed is not None:
        assert printed == block.printed.rstrip("\n"), f"{block} prints:\n{printed}"


@pytest.mark.parametrize("block", PYTHON, ids=str)
def test_python(block: Block, spark: SparkSession, root: Path) -> None:
    try:
        compare(block, run_python(block, spark, root))
    finally:
        for query in spark.streams.active:
            query.stop()
        for table in spark.catalog.listTables():
            spark.catalog.dropTempView(table.name)


@pytest.mark.parametrize("block", SQL, ids=str)
def test_sql(block: Block, spark: SparkSession, root: Path) -> None:
    for statement in filter(str.strip, page_blocks.substituted(block.code, root).split(";")):
        spark.sql(statement).collect()
    for table in spark.catalog.listTables():
        spark.catalog.dropTempView(table.name)


@pytest.mark.parametrize("block", SHELL, ids=str)
def test_shell(block: Block, root: Path) -> None:
    compare(block, run_shell(block, root))


def test_what_is_not_run_is_known() -> None:
    """Blocks are skipped only because of the programs that they call."""
    assert len(PYTHON) >= 20
    assert len(SHELL) >= 3
    programs = {program(line) for block in SHELL for line in statements(block.code)}
    assert programs - NOT_RUN.keys() >= {"mqstore"}


def test_the_rule_for_paths(tmp_path: Path) -> None:
    code = "load('/backup/broker-a/store'); load(\"/data/x\"); '/backups/x'; mqstore ls STORE /backup/rabbit@host"
    assert page_blocks.substituted(code, tmp_path) == (
        f"load('{tmp_path}/backup/broker-a/store'); load(\"{tmp_path}/data/x\"); '/backups/x'; "
        f"mqstore ls {tmp_path}/backup/broker-a/store {tmp_path}/node/rabbit@host"
    )
