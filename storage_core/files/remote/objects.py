"""S3, Google Cloud Storage and Azure through obstore, an extra of this package: `mqstore[remote]`.

Clients are created in the process that reads, because obstore's threads do not survive a fork. `clients` creates them,
`answers` interprets errors.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from types import ModuleType
from typing import Any

from storage_core.errors import MqStoreError, StorageError
from storage_core.files.address import Address
from storage_core.files.remote.access import Access
from storage_core.files.remote.answers import Answers
from storage_core.files.remote.back_end import BackEnd, Changed, Found, Refused
from storage_core.files.remote.clients import client, is_plain

MISSING = 'reading object storage needs obstore: pip install "mqstore[remote]", on every machine that reads'
FORKED = "this process was forked from one that had read object storage; start it by spawn instead"
CHUNK = 1000
PART_SIZE, PARTS_AT_ONCE = 8 << 20, 4

_first_process: list[int] = []


def connect(address: Address, access: Access) -> BackEnd:
    """The bucket or container of an address. Raises MqStoreError without obstore, StorageError or OptionError if the
    options are unsuitable.
    """
    try:
        obstore = importlib.import_module("obstore")
        stores = importlib.import_module("obstore.store")
    except ImportError:
        raise MqStoreError(f"{address.origin}: {MISSING}") from None
    if not _first_process:
        _first_process.append(os.getpid())
    kinds = importlib.import_module("obstore.exceptions")
    answers = Answers(kinds, address.scheme, is_plain(access))
    try:
        return Objects(obstore, client(stores, address, access), answers)
    except (kinds.BaseError, OSError, ValueError, TypeError) as error:
        raise StorageError(f"{address.origin}: {answers.text_of(error)}; check the options storage.*") from None


class Objects(BackEnd):
    """One bucket or container."""

    def __init__(self, obstore: ModuleType, client: Any, answers: Answers) -> None:
        self._obstore, self._client, self._answers = obstore, client, answers
        self._kinds = (answers.kinds.BaseError, OSError, ValueError)

    def walk(self, prefix: str) -> Iterator[list[Found]]:
        """Everything below a folder: one list per request."""
        self._check_process()
        answers = self._translated(lambda: iter(self._obstore.list(self._client, prefix or None, chunk_size=CHUNK)))
        while (answer := self._translated(lambda: next(answers, None), opens=True)) is not None:
            yield [_found(meta) for meta in answer]

    def folder(self, prefix: str) -> tuple[list[str], list[Found]]:
        """Folders and objects right in a folder."""
        self._check_process()
        answer = self._translated(lambda: self._obstore.list_with_delimiter(self._client, prefix or None), opens=True)
        names = [path.rstrip("/").rpartition("/")[2] for path in answer["common_prefixes"]]
        return names, [_found(meta) for meta in answer["objects"]]

    def get(self, found: Found, start: int, stop: int) -> memoryview:
        """A range of an object, if it still has its ETag; the answer's is compared too: some ignore If-Match."""
        self._check_process()
        options: dict[str, Any] = {"range": (start, stop)}
        if found.etag:
            options["if_match"] = found.etag
        else:  # the server lists none: the time in whole seconds, and the length, must do
            modified = datetime.fromtimestamp(found.modified_ns // 10**9 + 1, UTC)
            options["if_unmodified_since"] = modified

        def ask() -> memoryview:
            answer = self._obstore.get(self._client, found.path, options=options)
            if answer.meta["size"] != found.size or _is_another(answer.meta.get("e_tag"), found.etag):
                raise Changed
            return memoryview(answer.bytes())

        data: memoryview = self._translated(ask)
        return data

    def put(self, path: str, source: Callable[[], Iterator[bytes]], size: int, only_new: bool) -> None:
        """Writes an object in parts; in one request if it is small or must be new."""
        self._check_process()
        whole = only_new or size <= PART_SIZE
        data: Any = b"".join(source()) if whole else source()
        how: dict[str, Any] = {"mode": "create" if only_new else "overwrite", "use_multipart": not whole}
        parts = {"chunk_size": PART_SIZE, "max_concurrency": PARTS_AT_ONCE}
        self._translated(lambda: self._obstore.put(self._client, path, data, **how, **parts))

    def _check_process(self) -> None:
        if _first_process[0] != os.getpid():
            raise Refused(FORKED)

    def _translated(self, ask: Callable[[], Any], opens: bool = False) -> Any:
        try:
            return ask()
        except self._kinds as error:
            raise self._answers.meaning(error, opens) from None


def _is_another(etag: str | None, listed: str) -> bool:
    """Whether both ETags are known and differ; some listings leave out the quotes."""
    return bool(etag and listed) and str(etag).removeprefix("W/").strip('"') != listed.removeprefix("W/").strip('"')


def _found(meta: Mapping[str, Any]) -> Found:
    modified = meta["last_modified"]
    return Found(meta["path"], meta["size"], meta.get("e_tag") or "", int(modified.timestamp() * 1e6) * 1000)
