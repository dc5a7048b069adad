"""`publish=shards`: one store per task, all put in place by one rename, read as one table."""

from __future__ import annotations

from pathlib import Path

import pytest

from storage_core import find_stores, open_store
from storage_core.errors import MqStoreError, OptionError
from tests.support.rocketmq_writes import GEOMETRY, bodies, contents, rows


def shards(path: Path, tasks: int, rows_each: int = 20) -> tuple[int, list[str]]:
    with open_store(str(path), "rocketmq") as store:
        job = store.begin_job(publish="shards", **GEOMETRY)
    parts = [job.stage(iter(rows(rows_each, 100 * n).to_batches()), n) for n in range(tasks)]
    stale = job.stage(iter(rows(5, 9000).to_batches()), 0, 1, 7)
    assert stale.rows == 5
    parts.append(job.stage(iter([]), tasks))
    return job.commit(parts), find_stores(str(path))


@pytest.mark.parametrize("tasks", [1, 2, 5])
def test_each_task_is_a_store_and_attempts_that_do_not_count_are_gone(tasks: int, tmp_path: Path) -> None:
    count, stores = shards(tmp_path / "target", tasks)
    assert count == 20 * tasks
    assert len(stores) == tasks
    for number, store in enumerate(stores):
        assert store.endswith(f"-{number}")
        assert {int(body.split()[1]) for *_, body in bodies(Path(store))} == {100 * number + i for i in range(20)}
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


def test_a_target_that_holds_something_is_refused_and_an_abort_leaves_nothing(tmp_path: Path) -> None:
    shards(tmp_path / "target", 2)
    before = contents(tmp_path)
    with open_store(str(tmp_path / "other"), "rocketmq") as store:
        job = store.begin_job(publish="shards", **GEOMETRY)
    job.stage(iter(rows(5).to_batches()))
    job.abort()
    job.abort()
    assert contents(tmp_path) == before
    (tmp_path / "full").mkdir()
    with open_store(str(tmp_path / "full"), "rocketmq") as store:
        job = store.begin_job(publish="shards", **GEOMETRY)
    (tmp_path / "full" / "file").write_text("x")
    part = job.stage(iter(rows(5).to_batches()))
    with pytest.raises(MqStoreError, match="not empty"):
        job.commit([part])
    job.abort()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "target"]


def test_stores_of_tasks_share_no_log(tmp_path: Path) -> None:
    with open_store(str(tmp_path / "target"), "rocketmq", commitLogPath=str(tmp_path / "log")) as store:
        with pytest.raises(OptionError, match="excludes publish=shards: the store of each task has its own log"):
            store.begin_job(publish="shards", **GEOMETRY)
        assert contents(tmp_path) == {}
        assert store.append(rows(5), **GEOMETRY) == 5


def test_a_version_of_shards_is_written_once(tmp_path: Path) -> None:
    target = tmp_path / "target"
    for version, count in ((3, 20), (3, 0), (2, 0)):
        with open_store(str(target), "rocketmq") as store:
            job = store.begin_job(publish="shards", txnAppId="a", txnVersion=version, **GEOMETRY)
        assert job.commit([job.stage(iter(rows(20).to_batches()))]) == count
        assert [path.name for path in tmp_path.iterdir()] == ["target"]
    (store_path,) = find_stores(str(target))
    assert len(bodies(Path(store_path))) == 20
    with open_store(str(target), "rocketmq") as store, pytest.raises(MqStoreError, match="not empty"):
        store.begin_job(publish="shards", txnAppId="a", txnVersion=4, **GEOMETRY)
