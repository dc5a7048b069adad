"""Faults of an S3 server or the network, over HTTP: the right rows or a specific one-line error; no hang, no secret.

Each fault of issue 15 has a test that is named after it, here, in `test_remote_faults` or in `test_changed_objects`.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from storage_core import find_stores, open_store
from storage_core.errors import MqStoreError, OptionError, StorageError, StoreChangedError, StoreNotFoundError
from storage_core.files.remote import registry, requests
from storage_core.store import ScanRequest
from tests.golden import archive
from tests.support.http_bucket import KEY, SECRET, TOKEN, HttpBucket, http_bucket, talker

FOLDER = "a b/%LMQ% ü/store"
URI = f"s3://backups/{FOLDER}"
MOST_OF_ONE = requests.ATTEMPTS - 1
NAME = "mixed-4.9.3"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return archive.unpack(NAME, tmp_path_factory.mktemp(NAME))


@pytest.fixture(scope="module")
def expected(directory: Path) -> pa.Table:
    return rows(str(directory))


@pytest.fixture
def bucket(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HttpBucket]:
    monkeypatch.setattr(requests, "FIRST_PAUSE_S", 0.001)
    registry.forget_all()
    with http_bucket() as made:
        made.add_folder(directory, FOLDER)
        yield made
    registry.forget_all()


@pytest.fixture
def shown_texts(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Iterator[list[str]]:
    """Text that a test adds; neither this nor anything logged or printed may contain a secret, whole or in part."""
    shown: list[str] = []
    with caplog.at_level(logging.DEBUG):
        yield shown
    printed = capfd.readouterr()
    text = "\n".join([*shown, caplog.text, printed.out, printed.err])
    assert [secret for secret in (KEY, SECRET, TOKEN, KEY[4:], SECRET[:12], TOKEN[:16]) if secret in text] == []


def rows(path: str, **options: str) -> pa.Table:
    with open_store(path, **options) as store:
        plan = store.snapshot().plan(ScanRequest())
        return pa.Table.from_batches([batch for piece in plan for batch in piece.read()])


def failure(shown_texts: list[str], work: Callable[[], object], kind: type[MqStoreError] = StorageError) -> str:
    """The one-line error of work that must fail; its text, traceback and all causes are searched for secrets."""
    with pytest.raises(kind) as caught:
        work()
    error: BaseException | None = caught.value
    shown_texts += traceback.format_exception(caught.value)
    while error is not None:
        shown_texts.append(f"{error} {error!r}")
        error = error.__cause__
    text = str(caught.value)
    assert "\n" not in text
    return text


def each_third(fault: str, most: int = 1 << 30) -> Callable[[str, str], str]:
    """Injects the fault at every third request, `most` times in total and `MOST_OF_ONE` times per object.

    Requests run concurrently: without the second limit, all attempts at one object might be third ones by chance.
    """
    requested: list[str] = []
    struck: Counter[str] = Counter()

    def answer(kind: str, path: str) -> str:
        requested.append(path)
        if kind != "get" or len(requested) % 3 != 2 or struck.total() == most or struck[path] == MOST_OF_ONE:
            return ""
        struck[path] += 1
        return fault

    return answer


@pytest.mark.parametrize("fault", ["", "SlowDown", "InternalError", "reset", "short"])
def test_each_third_answer_fails_and_the_rows_are_right(
    bucket: HttpBucket, expected: pa.Table, shown_texts: list[str], fault: str
) -> None:
    bucket.fault = each_third(fault)
    assert rows(URI, **bucket.options).equals(expected)
    assert len(bucket.asked) > 5


def test_a_stall_is_given_up_and_retried(bucket: HttpBucket, expected: pa.Table, shown_texts: list[str]) -> None:
    bucket.fault = each_third("stall", most=1)
    assert rows(URI, **{**bucket.options, "storage.timeout": "1"}).equals(expected)


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        ("SlowDown", "SlowDown, 6 times"),
        ("InternalError", "InternalError, 6 times"),
        ("reset", "6 times"),
        ("short", "the answer broke off, 6 times"),
    ],
)
def test_a_fault_without_end_is_one_line(bucket: HttpBucket, shown_texts: list[str], fault: str, line: str) -> None:
    bucket.fault = lambda kind, path: fault if kind == "get" else ""
    text = failure(shown_texts, lambda: rows(URI, **bucket.options))
    assert text.startswith(f"StorageError: {URI}/")
    assert ": bytes " in text
    assert line in text
    assert text.endswith("check the network and the endpoint, or try later")


@pytest.mark.parametrize(
    ("code", "hint"),
    [
        ("InvalidAccessKeyId", "check storage.accessKey"),
        ("SignatureDoesNotMatch", "check storage.secretKey"),
        ("AccessDenied", "s3:ListBucket"),
        ("PermanentRedirect", "set storage.region"),
        ("AuthorizationHeaderMalformed", "set storage.region"),
        ("ExpiredToken", "the session token has expired"),
    ],
)
def test_a_wrong_key_a_wrong_region_and_no_right_to_list(
    bucket: HttpBucket, shown_texts: list[str], code: str, hint: str
) -> None:
    bucket.fault = lambda kind, path: code if kind == "list" else ""
    text = failure(shown_texts, lambda: open_store(URI, **bucket.options))
    assert text.startswith(f"StorageError: {URI}: listing it: ")
    assert hint in text
    assert len(bucket.asked) == 1


def test_no_right_to_get(bucket: HttpBucket, shown_texts: list[str]) -> None:
    bucket.fault = lambda kind, path: "AccessDenied" if kind == "get" else ""
    text = failure(shown_texts, lambda: rows(URI, **bucket.options))
    assert text.startswith(f"StorageError: {URI}/")
    assert "s3:GetObject" in text


def test_no_bucket_and_nothing_in_a_bucket(bucket: HttpBucket, shown_texts: list[str]) -> None:
    options = bucket.options
    assert "nobucket" in failure(shown_texts, lambda: open_store("s3://nobucket/store", **options), StoreNotFoundError)
    assert "nothing" in failure(shown_texts, lambda: open_store("s3://backups/nothing", **options), StoreNotFoundError)


def test_a_token_that_expires_in_mid_scan(bucket: HttpBucket, shown_texts: list[str]) -> None:
    with open_store(URI, **bucket.options) as store:
        plan = store.snapshot().plan(ScanRequest(min_partitions=4))
    registry.forget_all()
    before = len(bucket.asked)
    bucket.fault = lambda kind, path: "ExpiredToken" if len(bucket.asked) > before + 2 else ""
    text = failure(shown_texts, lambda: [list(piece.read()) for piece in plan])
    assert text.startswith(f"StorageError: {URI}/")
    assert "ExpiredToken: the session token has expired; get a new one" in text


def test_https_where_the_server_speaks_http(bucket: HttpBucket, shown_texts: list[str]) -> None:
    secure = bucket.options["storage.endpoint"].replace("http:", "https:")
    text = failure(shown_texts, lambda: open_store(URI, **{**bucket.options, "storage.endpoint": secure}))
    assert text.startswith(f"StorageError: {URI}: listing it: the endpoint speaks http and not https")


@pytest.mark.parametrize("content", [None, b"", b"nothing"], ids=["missing", "empty", "no PEM"])
def test_a_file_without_certificates(
    bucket: HttpBucket, shown_texts: list[str], tmp_path: Path, content: bytes | None
) -> None:
    path = tmp_path / "authority.pem"
    if content is not None:
        path.write_bytes(content)
    secure = bucket.options["storage.endpoint"].replace("http:", "https:")
    options = {**bucket.options, "storage.endpoint": secure, "storage.caFile": str(path)}
    text = failure(shown_texts, lambda: open_store(URI, **options), OptionError)
    assert text.startswith("OptionError: option 'storage.caFile' = ")
    assert "names a file of certificates (PEM)" in text
    assert bucket.asked == []


@pytest.mark.parametrize(
    "answer",
    [
        b"\x15\x03\x01\x00\x02\x02\x46",
        b"",
        b"HTTP/1.1 400 Bad Request\r\nContent-Length: 3\r\nConnection: close\r\n\r\nTLS",
    ],
    ids=["an alert", "hangs up", "says so"],
)
def test_http_where_the_server_speaks_https(bucket: HttpBucket, shown_texts: list[str], answer: bytes) -> None:
    with talker(answer) as address:
        options = {**bucket.options, "storage.endpoint": f"http://{address}"}
        text = failure(shown_texts, lambda: open_store(URI, **options))
    assert text.startswith(f"StorageError: {URI}: listing it: ")
    assert "https" in text


def test_names_are_taken_as_they_stand(bucket: HttpBucket, expected: pa.Table, shown_texts: list[str]) -> None:
    assert find_stores("s3://backups/a b", **bucket.options) == [URI]
    assert rows(URI + "/", **bucket.options).equals(expected)


def test_folder_marks_and_thousands_of_names(bucket: HttpBucket, expected: pa.Table, shown_texts: list[str]) -> None:
    for mark in ("", "commitlog/", "consumequeue/"):
        bucket.objects[f"{FOLDER}/{mark}"] = b""
    for number in range(2500):
        bucket.objects[f"{FOLDER}/config/old/{number}.json"] = b"{}"
    assert rows(URI, **bucket.options).equals(expected)
    assert [kind for kind, _ in bucket.asked].count("list") == 3


@pytest.mark.parametrize("knows_if_match", [True, False])
@pytest.mark.parametrize("how", ["replaced", "shortened", "deleted"])
def test_a_changed_object_is_named(bucket: HttpBucket, shown_texts: list[str], how: str, knows_if_match: bool) -> None:
    bucket.knows_if_match = knows_if_match
    with open_store(URI, **bucket.options) as store:
        plan = store.snapshot().plan(ScanRequest())
    registry.forget_all()
    path = next(path for path in sorted(bucket.objects) if "/commitlog/" in path)
    data = bucket.objects.pop(path)
    if how != "deleted":
        bucket.objects[path] = data[:1000] if how == "shortened" else bytes(len(data))
    text = failure(shown_texts, lambda: [list(piece.read()) for piece in plan], StoreChangedError)
    assert text.startswith(f"StoreChangedError: s3://backups/{path}: the object was ")


def test_a_command_shows_no_secret(bucket: HttpBucket, shown_texts: list[str]) -> None:
    bucket.fault = lambda kind, path: "SignatureDoesNotMatch"
    access = [f"--storage={name.removeprefix('storage.')}={value}" for name, value in bucket.options.items()]
    done = subprocess.run(
        [sys.executable, "-m", "command_line", "info", URI, *access],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    shown_texts += [done.stdout, done.stderr]
    assert done.returncode != 0
    assert "SignatureDoesNotMatch" in done.stderr
    assert done.stderr.count("\n") == 1
