"""`spark-submit` to workers without mqstore: it is shipped as the renamed wheel (docs/deployment.md "Cluster")."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pyspark
import pytest

from mqstore import ensure_java
from storage_core import open_store
from tests.golden import archive

pytestmark = pytest.mark.real

ROOT = Path(__file__).resolve().parents[2]
JOB = """
import sys

import pyspark_mqstore
from pyspark.sql import SparkSession


def home(_):
    import storage_core

    yield sys.executable, storage_core.__file__


spark = SparkSession.builder.getOrCreate()
spark.dataSource.register(pyspark_mqstore.DefaultSource)
print("worker:", *spark.sparkContext.parallelize([1], 1).mapPartitions(home).first())
mails = spark.read.format("mqstore").option("topic", "payments").load(sys.argv[1])
mails.selectExpr("'mails' as topic", "key", "body").write.format("mqstore").mode("append").save(sys.argv[2])
print("rows:", spark.read.format("mqstore").option("topic", "mails").load(sys.argv[2]).count())
spark.stop()
"""


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A Python with everything that this one has except mqstore."""
    folder = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for path in Path(sysconfig.get_paths()["purelib"]).iterdir():
        if "mqstore" not in path.name and path.suffix != ".pth":
            (site / path.name).symlink_to(path)
    return folder / "bin" / "python"


def test_the_wheel_as_a_zip_reaches_workers_without_mqstore(bare: Path, tmp_path: Path) -> None:
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(tmp_path)]
    source = tmp_path / "source"
    source.mkdir()
    packed = subprocess.run(["git", "ls-files", "-z", "--cached", "*.py", "*.cfg", "*.toml", "README.md", "LICENSE",
                             "*py.typed"], cwd=ROOT, check=True, capture_output=True, text=True).stdout  # fmt: skip
    for name in filter(None, packed.split("\0")):
        target = source / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((ROOT / name).read_bytes())
    subprocess.run([*build, str(source)], check=True)
    (wheel,) = tmp_path.glob("mqstore-*.whl")
    wheel.rename(tmp_path / "mqstore.zip")
    (tmp_path / "job.py").write_text(JOB)
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    absent = subprocess.run(
        [str(bare), "-c", "import storage_core"], cwd="/", env=outside, capture_output=True, check=False
    )
    assert b"ModuleNotFoundError" in absent.stderr
    ensure_java()
    home = Path(pyspark.__file__).parent
    store, new = archive.unpack("shop-4.9.3", tmp_path / "shop"), tmp_path / "new"
    done = subprocess.run(
        [str(home / "bin" / "spark-submit"), "--master", "local-cluster[1,1,1024]", "--conf", "spark.ui.enabled=false",
         "--conf", "spark.driver.host=127.0.0.1", "--py-files", str(tmp_path / "mqstore.zip"),
         str(tmp_path / "job.py"), str(store), str(new)],
        cwd="/", capture_output=True, text=True, check=False,
        env={**outside, "JAVA_HOME": os.environ["JAVA_HOME"], "SPARK_HOME": str(home), "PYSPARK_PYTHON": str(bare),
             "SPARK_LOCAL_IP": "127.0.0.1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    worker = re.search(r"worker: (\S+) (\S+)", done.stdout)
    assert worker is not None, done.stdout
    assert worker[1] == str(bare)
    assert "mqstore.zip/storage_core" in worker[2]
    assert "rows: 5291" in done.stdout
    with open_store(str(new)) as made:
        assert sum(queue.stop - queue.start for queue in made.queues()) == 5291
