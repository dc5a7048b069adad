"""How errors appear to a user, and the paths that the data source accepts and refuses; without a session."""

from __future__ import annotations

import os
import pickle
import sys
from types import ModuleType, SimpleNamespace

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StringType, StructField, StructType

from connector.batch_reader import MqStoreBatchReader
from connector.datasource import MqStoreDataSource
from connector.errors import host_name, in_spark_worker, one_line, shown_in_one_line
from connector.partition import MqStorePartition
from connector.paths import absolute, load_paths
from storage_core import open_store
from storage_core.errors import (
    CorruptionError,
    DataLossError,
    MqStoreError,
    OptionError,
    StoreNotFoundError,
    UnsupportedFormatError,
)
from storage_core.store_names import store_names

GIVE = "read as a user who may, or copy the store"
ABSENT = "has no module pyarrow; install mqstore there, or set PYSPARK_PYTHON to a Python that has it"
CHECK = "check that the store is there and readable on every machine that runs Spark"


@pytest.fixture
def in_worker(monkeypatch) -> None:
    main = ModuleType("__main__")
    main.__spec__ = SimpleNamespace(name="pyspark.daemon")
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.delenv("SPARK_HIDE_TRACEBACK", raising=False)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (CorruptionError("/s/commitlog/0", 7, "bad CRC"), "CorruptionError: /s/commitlog/0 at 7: bad CRC"),
        (DataLossError("offset 3 is gone"), "DataLossError: offset 3 is gone"),
        (OptionError("mode", "x", "no"), "OptionError: option 'mode' = 'x': no"),
        (MqStoreError("plain"), "plain"),
        (StoreNotFoundError("two\nlines"), "StoreNotFoundError: two lines"),
        (
            PermissionError(13, "Permission denied", "/s/commitlog"),
            f"PermissionError: /s/commitlog: permission denied on host {host_name()}; {GIVE}",
        ),
        (
            OSError(5, "Input/output error", "/s/commitlog/0"),
            f"OSError: /s/commitlog/0: Input/output error on host {host_name()}; {CHECK}",
        ),
        (
            ModuleNotFoundError("No module named 'pyarrow'", name="pyarrow"),
            f"ModuleNotFoundError: {sys.executable}, which runs Spark's Python workers on host {host_name()}, {ABSENT}",
        ),
        (ModuleNotFoundError("No module named 'connector.x'", name="connector.x"), None),
        (ModuleNotFoundError("without a name"), None),
        (ValueError("a bug"), None),
        (OSError("without a place"), None),
    ],
)
def test_one_line(error: Exception, text: str | None) -> None:
    assert one_line(error) == text


@shown_in_one_line
def fails(error: Exception) -> None:
    raise error


@shown_in_one_line
def yields_and_fails(error: Exception):
    yield 1
    raise error


def test_outside_sparks_workers_errors_go_on_as_they_are(monkeypatch) -> None:
    monkeypatch.delenv("SPARK_HIDE_TRACEBACK", raising=False)
    assert not in_spark_worker()
    with pytest.raises(DataLossError):
        fails(DataLossError("gone"))
    with pytest.raises(DataLossError):
        list(yields_and_fails(DataLossError("gone")))
    assert "SPARK_HIDE_TRACEBACK" not in os.environ


@pytest.mark.usefixtures("in_worker")
def test_in_a_worker_a_users_error_hides_its_traceback() -> None:
    with pytest.raises(MqStoreError, match=r"^DataLossError: gone$") as caught:
        list(yields_and_fails(DataLossError("gone")))
    assert caught.type.__module__ == "builtins"
    assert caught.type.__name__ == "mqstore"
    assert os.environ.pop("SPARK_HIDE_TRACEBACK") == "1"
    with pytest.raises(MqStoreError):
        fails(MqStoreError("x"))
    assert os.environ.pop("SPARK_HIDE_TRACEBACK") == "1"


@pytest.mark.usefixtures("in_worker")
def test_in_a_worker_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        fails(ZeroDivisionError())
    assert "SPARK_HIDE_TRACEBACK" not in os.environ


def test_a_generator_that_is_closed_early_closes_what_it_reads() -> None:
    closed = []

    @shown_in_one_line
    def rows():
        try:
            yield 1
            yield 2
        finally:
            closed.append(True)

    reading = rows()
    next(reading)
    reading.close()
    assert closed == [True]


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/a/b/", "/a/b"),
        ("file:/a/b", "/a/b"),
        ("file:///a/b", "/a/b"),
        ("file://localhost/a", "/a"),
        ("/a/../b", "/b"),
    ],
)
def test_paths(path: str, found: str) -> None:
    assert absolute(path) == found


def test_relative_paths_count_from_the_working_directory(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert absolute("store") == str(tmp_path / "store")
    assert absolute("file:store") == str(tmp_path / "store")


@pytest.mark.parametrize("path", ["s3://bucket/store", "hdfs:///store", "s3a://b/c", "dbfs:/x", "HTTPS://h/x"])
def test_uris_are_handed_on_as_they_are(path: str) -> None:
    assert absolute(path) == path


@pytest.mark.parametrize("path", ["dbfs:/x", "HTTPS://h/x"])
def test_other_schemes(path: str) -> None:
    with pytest.raises(UnsupportedFormatError, match=r"mqstore on host .* reads local directories and s3:") as caught:
        open_store(path)
    assert "\n" not in str(caught.value)


def test_several_paths() -> None:
    assert load_paths({"paths": '["/a", "/b", "/a/"]'}) == ("/a", "/b")
    assert load_paths({"path": "/c"}) == ("/c",)
    assert load_paths({}) == ()
    with pytest.raises(OptionError, match="must be a JSON list of texts"):
        load_paths({"paths": "/a"})


def test_store_names() -> None:
    assert store_names(["/data/broker-a/store"]) == ("store",)
    assert store_names(["/data/a/store", "/data/b/store"]) == ("a/store", "b/store")
    assert store_names(["/data/a", "/data/b"]) == ("a", "b")
    assert store_names(["/data/a", "/other/b"]) == ("data/a", "other/b")


def test_no_path() -> None:
    with pytest.raises(MqStoreError) as caught:
        MqStoreDataSource({}).schema()
    assert one_line(caught.value) == (
        "no path: give the store's directory, as in load('/backup/store') or save('/data/store'). Spark 4 does not "
        "hand a catalog table's path to Python sources; for SQL use CREATE TEMPORARY VIEW … USING mqstore OPTIONS "
        "(path '…')"
    )


def test_the_source_makes_its_paths_absolute_once(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    source = pickle.loads(pickle.dumps(MqStoreDataSource({"path": "s", "commitLogPath": "log, /other"})))
    monkeypatch.chdir("/")
    assert source._found_paths() == (str(tmp_path / "s"),)
    assert source._options["commitlogpath"] == f"{tmp_path / 'log'},/other"


class Broken:
    """A piece whose files are missing."""

    def read(self):
        raise FileNotFoundError(2, "No such file or directory", "/gone/commitlog/0")
        yield


def test_a_path_that_a_task_does_not_see_names_the_host(tmp_path) -> None:
    reader = MqStoreBatchReader({}, ("/gone",), StructType([StructField("topic", StringType())]))
    with pytest.raises(StoreNotFoundError) as caught:
        list(reader.read(MqStorePartition("/gone", Broken())))
    assert str(caught.value) == (
        f"StoreNotFoundError: /gone does not exist on host {host_name()}, where a task reads it; "
        "every machine that runs Spark must see the store at this path: mount it there, or read where it is"
    )
    with pytest.raises(FileNotFoundError):
        list(reader.read(MqStorePartition(str(tmp_path), Broken())))


def test_a_plan_without_partitions_has_no_rows() -> None:
    reader = MqStoreBatchReader({}, ("/a",), StructType([StructField("topic", StringType())]))
    assert list(reader.read(InputPartition(None))) == []
