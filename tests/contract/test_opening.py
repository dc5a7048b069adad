"""Opening a store, identifying it, and closing it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage_core import find_stores, open_store
from storage_core.errors import OptionError, StoreClosedError, StoreNotFoundError
from storage_core.store import Store
from tests.contract.engine import Engine, Message, Seen, read
from tests.golden.archive import fingerprint


def test_an_existing_store_needs_no_option(engine: Engine, store: Path) -> None:
    with open_store(str(store)) as opened:
        assert opened.engine == engine.name


def test_a_store_has_the_name_of_its_directory(engine: Engine, store: Path) -> None:
    for spelled in (str(store), f"{store}/", f"{store.parent}/../{store.parent.name}/store"):
        with open_store(spelled) as opened:
            assert opened.name == "store"
            assert opened.path == str(store)


def test_a_relative_path_is_made_absolute(engine: Engine, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(store.parent)
    with open_store("store") as opened:
        monkeypatch.chdir("/")
        assert opened.path == str(store)
        assert opened.queues()


def test_a_file_url_is_a_path(engine: Engine, store: Path, everything: list[Seen]) -> None:
    assert sorted(engine.rows(Path(f"file:{store}"))) == everything


def test_links_are_followed(engine: Engine, store: Path, tmp_path: Path, everything: list[Seen]) -> None:
    (tmp_path / "link").symlink_to(store)
    assert sorted(engine.rows(tmp_path / "link")) == everything


def test_the_engine_may_be_named(engine: Engine, store: Path) -> None:
    for named in (engine.name, "auto"):
        with open_store(str(store), named) as opened:
            assert opened.engine == engine.name


def test_a_store_is_not_one_of_the_other_engine(engine: Engine, store: Path) -> None:
    names = {"rocketmq": "RocketMQ", "rabbitmq": "RabbitMQ"}
    named = names.pop(engine.name)
    ((other, requested),) = names.items()
    with pytest.raises(StoreNotFoundError, match=f"{store}: this is a {named} store, not a {requested} store"):
        open_store(str(store), other)


def test_an_unknown_engine_names_those_that_are(engine: Engine, store: Path) -> None:
    with pytest.raises(OptionError, match="auto, rocketmq, rabbitmq") as caught:
        open_store(str(store), "kafka")
    assert (caught.value.name, caught.value.value) == ("engine", "kafka")


def test_a_path_that_is_not_there_names_the_host(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError, match=f"{tmp_path}/nothing.* host {os.uname().nodename}"):
        open_store(f"{tmp_path}/nothing")


def test_a_file_is_no_store(engine: Engine, store: Path) -> None:
    path = next(path for path in sorted(store.rglob("*")) if path.is_file())
    with pytest.raises(StoreNotFoundError, match=f"{path}.* is a file"):
        open_store(str(path))


def test_opening_reads_and_changes_nothing(engine: Engine, own: Path) -> None:
    before = fingerprint(own.parent)
    for _ in range(2):
        open_store(str(own)).close()
    assert fingerprint(own.parent) == before


def test_two_may_have_it_open(engine: Engine, store: Path) -> None:
    with open_store(str(store)) as one, open_store(str(store)) as two:
        assert one.queues() == two.queues()


def test_an_unknown_option_names_close_ones(engine: Engine, store: Path) -> None:
    with pytest.raises(OptionError, match=r"\brecovery\b") as caught:
        open_store(str(store), recovry="none")
    assert (caught.value.name, caught.value.value) == ("recovry", "none")


def test_a_wrong_value_names_the_right_ones(engine: Engine, store: Path) -> None:
    with pytest.raises(OptionError, match=r"auto.*none") as caught:
        open_store(str(store), recovery="nine")
    assert (caught.value.name, caught.value.value) == ("recovery", "nine")


def test_names_of_options_have_no_case(engine: Engine, store: Path, everything: list[Seen]) -> None:
    with open_store(str(store), RECOVERY="none") as opened:
        assert sorted(engine.seen(read(opened.snapshot().plan(engine.request())))) == everything


def test_recovery_none_serves_a_whole_store_alike(engine: Engine, store: Path, everything: list[Seen]) -> None:
    with open_store(str(store), recovery="none") as opened:
        assert sorted(engine.seen(read(opened.snapshot().plan(engine.request())))) == everything


def test_stores_are_found_in_a_folder_by_a_pattern_and_by_themselves(engine: Engine, store: Path) -> None:
    for path in (store, store.parent, f"{store.parent}/st*", f"file:{store}"):
        for named in (None, engine.name):
            assert find_stores(str(path), named) == [str(store)]


# -- a store to be created


def test_a_new_store_must_be_asked_for_by_its_engine(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(StoreNotFoundError):
        open_store(str(tmp_path / "new"))


def test_a_new_store_is_not_there_before_it_is_written(engine: Engine, tmp_path: Path) -> None:
    with engine.new(tmp_path / "new") as opened:
        assert opened.engine == engine.name
        with pytest.raises(StoreNotFoundError, match=str(tmp_path / "new")):
            opened.snapshot().queues()
    assert not (tmp_path / "new").exists()


def test_a_directory_of_other_things_does_not_become_a_store(
    engine: Engine, tmp_path: Path, messages: list[Message]
) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"miau")
    before = fingerprint(tmp_path)
    with pytest.raises(StoreNotFoundError, match=str(tmp_path / "photos")):
        engine.made(tmp_path / "photos", messages)
    assert fingerprint(tmp_path) == before


# -- closing

QUESTIONS: dict[str, Callable[[Engine, Store], Any]] = {
    "snapshot": lambda engine, store: store.snapshot(),
    "queues": lambda engine, store: store.queues(),
    "read": lambda engine, store: list(store.read("alpha", 0, 0, 1)),
    "find": lambda engine, store: list(store.find()),
    "view": lambda engine, store: list(store.view("queues")),
    "view_schema": lambda engine, store: store.view_schema("queues"),
    "definitions": lambda engine, store: store.definitions(),
    "begin_job": lambda engine, store: store.begin_job(),
    "append": lambda engine, store: store.append(engine.table([Message("alpha", b"late")])),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_a_closed_store_answers_nothing(engine: Engine, own: Path, question: str) -> None:
    before = fingerprint(own.parent)
    opened = open_store(str(own))
    opened.close()
    with pytest.raises(StoreClosedError, match=f"StoreClosedError: {own}: "):
        QUESTIONS[question](engine, opened)
    assert fingerprint(own.parent) == before


def test_a_closed_store_may_be_closed_again_and_has_its_name(engine: Engine, store: Path) -> None:
    opened = open_store(str(store))
    opened.close()
    opened.close()
    assert (opened.name, opened.path, opened.engine) == ("store", str(store), engine.name)


def test_a_context_closes_it_also_after_an_error(engine: Engine, store: Path) -> None:
    opened = open_store(str(store))
    with opened as same:
        assert same is opened
    with pytest.raises(StoreClosedError):
        opened.snapshot()
    opened = open_store(str(store))
    with pytest.raises(ZeroDivisionError), opened:
        _ = 1 / 0
    with pytest.raises(StoreClosedError):
        opened.snapshot()


def test_a_plan_outlives_its_store(engine: Engine, store: Path, everything: list[Seen]) -> None:
    """Spark plans in one process, which closes the store again, and reads in others."""
    with open_store(str(store)) as opened:
        partitions = opened.snapshot().plan(engine.request(min_partitions=3))
    assert sorted(engine.seen(read(partitions))) == everything


def test_closing_one_leaves_the_other_open(engine: Engine, store: Path) -> None:
    one, two = open_store(str(store)), open_store(str(store))
    one.close()
    with two:
        assert two.queues()
