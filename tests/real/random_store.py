"""Random stores made by the real RocketMQ stores: geometry, messages, restarts and crashes from one seed."""

from __future__ import annotations

import base64
import random
import shutil
import struct
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lz4.frame
import zstandard

from tests.real.oracle import Oracle
from tests.support.rocketmq_files import log_files, queue_files

FIRST_MS = 1_700_000_000_000

WORDS = ("order-%d", "user-%d", "键-%d", "k%d", "😀%d", "ключ%d", "a.b/c:%d", "UPPER_%d")
TAGS = ("TagA", "TagB", "标签", "paid", "Tag with space", "AaAa", "BBBB", "😀", "x")
NAMES = (
    "a",
    "bb",
    "用户",
    "x" * 20,
    "trace-id",
    "k_1",
    "__SHARDINGKEY",
    "INSTANCE_ID",
    "TTL",
    "z9",
    "é",
    "😀k",
    "CLUSTER",
)
VALUES = ("v", "value %d", "数据", "x=1&y=2", '{"json": true}', " ", "a\x01b")
TOPICS = ("T", "orders", "audit", "%RETRY%group-a", "%DLQ%group-a", "L" * 127, "a|b_c-d", "jobs", "payments_eu")
LONG_TOPICS = ("%RETRY%" + "g" * 200, "V" * 128)


@dataclass
class RandomStore:
    """One store: the version that made it, its settings, and what happened to it."""

    seed: int
    version: str
    directory: Path
    settings: dict[str, Any] = field(default_factory=dict)
    story: list[str] = field(default_factory=list)
    light: bool = False
    intact: bool = False
    upgraded: bool = False

    def __str__(self) -> str:
        return f"seed {self.seed}, {self.version}, {self.settings}: {'; '.join(self.story)}"


def make(seed: int, directory: Path, intact: bool = False, light: bool = False) -> RandomStore:
    """Makes the store of a seed in `directory`, which must not exist. With `intact` nothing crashes or expires; with
    `light` its records name light queues, as otherwise only few seeds do.
    """
    r = random.Random(seed)
    store = RandomStore(seed, r.choice(("493", "533")), directory, light=r.random() < 0.06 or light, intact=intact)
    store.settings = _geometry(r, store)
    directory.mkdir(parents=True)
    writer = _Writer(r, store)
    sessions = r.choice((1, 1, 2, 2, 3, 4))
    upgrade = _upgrade(seed, sessions) if store.version == "493" else sessions
    for number in range(sessions):
        if number and r.random() < 0.4 and not intact:
            _expire(r, store)
        if number == upgrade:
            store.version, store.upgraded = "533", True
            store.story.append("5.3.3 goes on")
        writer.session()
    if r.random() < 0.3 and not intact:
        _expire(r, store)
    return store


def _upgrade(seed: int, sessions: int) -> int:
    """The first session that 5.3.3 runs on a store that 4.9.3 began."""
    r = random.Random(f"upgrade of {seed}")
    return r.randrange(1, sessions) if sessions > 1 and r.random() < 0.3 else sessions


def _geometry(r: random.Random, store: RandomStore) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "mappedFileSizeCommitLog": r.choice((4096, 5000, 8192, 16384, 30000, 65536, 262144)),
        "mappedFileSizeConsumeQueue": r.choice((100, 200, 390, 400, 1000, 2000)),
        "maxHashSlotNum": r.choice((5, 51, 101, 500)),
        "maxIndexNum": r.choice((400, 1000, 3000)),
    }
    if r.random() < 0.1:
        settings["messageIndexEnable"] = False
    if r.random() < 0.06:
        settings |= {"enableConsumeQueueExt": True, "mappedFileSizeConsumeQueueExt": r.choice((2048, 10000))}
    if store.version == "533" and r.random() < 0.15:
        settings["enabledAppendPropCRC"] = True
    if store.version == "533" and r.random() < 0.5:
        settings["oracle.delay"] = True
    if store.light:
        settings |= {"enableMultiDispatch": True, "enableLmq": True}
    return settings


def _expire(r: random.Random, store: RandomStore) -> None:
    """Deletes the oldest log files, sometimes the queue files that point only into them, sometimes an entire queue."""
    files = log_files(store.directory)
    gone = r.randrange(0, len(files)) if files else 0
    if not gone:
        return
    for path in files[:gone]:
        path.unlink()
    low = int(files[gone].name)
    store.story.append(f"{gone} oldest log files deleted, the log starts at {low}")
    if r.random() < 0.5:
        _expire_queue_files(store.directory, low)
        store.story.append("queue files that point below it deleted")
    queues = sorted({path.parent for path in queue_files(store.directory)})
    if queues and r.random() < 0.3:
        lost = r.choice(queues)
        shutil.rmtree(lost)
        store.story.append(f"queue {lost.parent.name}/{lost.name} deleted")


def _expire_queue_files(directory: Path, low: int) -> None:
    for folder in {path.parent for path in queue_files(directory)}:
        for path in sorted(folder.iterdir())[:-1]:
            if struct.unpack(">q", path.read_bytes()[-20:-12])[0] >= low:
                break
            path.unlink()


class _Writer:
    """Puts random messages into the store, session by session. Most of the time the clock only moves forward."""

    def __init__(self, r: random.Random, store: RandomStore) -> None:
        self.r, self.store, self.now_ms, self.count = r, store, FIRST_MS, 0
        known = TOPICS + (LONG_TOPICS if store.version == "533" else ())
        self.topics = r.sample(known, r.randrange(1, len(known)))
        self.queues = r.choice((1, 1, 2, 4, 9))
        self.sizes = r.choice(((0, 1, 10), (0, 1, 30, 100, 300), (10, 200, 900, 2500)))
        self.types = r.choice(((0,), (0, 0, 8), (0, 0, 0, 0, 4, 8, 12)))
        self.six = r.choice((0.0, 0.0, 0.3))

    def session(self) -> None:
        """Runs the real store once; it ends cleanly or with a crash."""
        r = self.r
        crash = r.random() < (0.6 if self.store.version == "533" else 0.45) and not self.store.intact
        puts = r.choice((0, 3, 20, 60, 150, 250))
        self._remove_empty_files()
        with Oracle(self.store.version, self.store.directory, self.store.settings) as oracle:
            if not oracle.loaded:
                raise RuntimeError(f"the real store does not load what it wrote: {self.store}")
            for _ in range(puts):
                self._put(oracle)
            end = self._crash(oracle) if crash else "clean stop"
        self.store.story.append(f"{puts} puts, {end}")

    def _remove_empty_files(self) -> None:
        """Does what an operator does after a kill between creating and sizing a file: 4.9.3 refuses such a store."""
        for folder in ("commitlog", "consumequeue"):
            for path in (self.store.directory / folder).rglob("*"):
                if path.is_file() and not path.stat().st_size:
                    path.unlink()
                    self.store.story.append(f"{path.name}, of no length, deleted")

    def _crash(self, oracle: Oracle) -> str:
        """Ends the store between two puts, or in the middle of many: how far it gets depends on timing."""
        r = self.r
        if r.random() < 0.4:
            self.now_ms += 1000
            fixed = {"op": "put", "sysFlag": 0, "body": "in flight " * r.randrange(30), "props": {"KEYS": "flight"}}
            oracle.kill_while_doing([{**fixed, **self._head()} for _ in range(200)], r.random() * 0.15)
            return "killed in the middle of 200 more"
        if r.random() < 0.6:
            oracle.ask(op="wait")
        if r.random() < 0.5:
            oracle.ask(op="flush")
        oracle.halt()
        return "crash"

    def _put(self, oracle: Oracle) -> None:
        r = self.r
        self.now_ms += r.choice((0, 0, 1, 3, 40, 900, 1500, 7000)) if r.random() < 0.98 else -5000
        self.count += 1
        oracle.ask(op="clock", ms=self.now_ms)
        if r.random() < 0.1 and not self.store.light:
            self._batch(oracle)
            return
        message = self._head() | {"sysFlag": r.choice((*self.types, 2)), "props": self._properties()}
        body = r.randbytes(r.choice(self.sizes))
        kind = r.random()
        if kind < 0.06:
            body, message["sysFlag"] = self._squeezed(message["sysFlag"])
        elif kind < 0.12:
            body = self._fitting(oracle, message)
        if r.random() < 0.08:
            message["props"] |= {"DELAY": str(r.choice((0, 1, 2, 5, 18, 99)))}
        oracle.ask(op="put", body64=base64.b64encode(body).decode(), **message)
        if r.random() < 0.03:
            oracle.ask(op="wait")

    def _head(self) -> dict[str, Any]:
        r = self.r
        born_six, stored_six = r.random() < self.six, r.random() < self.six
        return {
            "topic": r.choice(self.topics),
            "queueId": r.randrange(self.queues),
            "bornTs": self.now_ms - r.randrange(5000),
            "bornHost": _address(r, born_six),
            "storeHost": "[fe80::1]:10911" if stored_six else "192.168.1.10:10911",
            "reconsumeTimes": r.choice((0, 0, 0, 1, 16)),
            "pto": r.choice((0, 0, 123456789012)),
            "flag": r.choice((0, 0, 0, 7, -1, 2147483647, -2147483648)),
        }

    def _batch(self, oracle: Oracle) -> None:
        r = self.r
        shared = {"batch": f"b{self.count}"} if r.random() < 0.5 else {}
        inner = [
            {
                "body64": base64.b64encode(r.randbytes(r.randrange(120))).decode(),
                "flag": r.randrange(3),
                "props": self._properties(),
            }
            for _ in range(r.randrange(1, 7))
        ]
        oracle.ask(op="batch", **self._head(), sysFlag=0, props=shared, msgs=inner)

    def _properties(self) -> dict[str, str]:
        r, found = self.r, {}
        if self.store.light:
            found = {"light": "yes"}
            if r.random() < 0.5:
                # 5.x assigns queue offsets only to light queues, and its dispatcher fails on the others.
                names = ("%LMQ%a", "%LMQ%b", "%LMQ%c", *(("copy", "orders") * (self.store.version == "493")))
                found["INNER_MULTI_DISPATCH"] = ",".join(r.sample(names, r.randrange(1, 4)))
        elif r.random() < 0.12:
            return found
        if r.random() < 0.8:
            words = [r.choice(WORDS) % r.randrange(200) for _ in range(r.choice((1, 1, 1, 2, 3, 6)))]
            if r.random() < 0.1:
                words.insert(r.randrange(len(words) + 1), "")
            found["KEYS"] = " ".join(words)
        if r.random() < 0.7:
            found["TAGS"] = r.choice(TAGS)
        if r.random() < 0.85:
            found["UNIQ_KEY"] = "%032X" % (0x7F0000010000 << 80 | self.count << 32 | r.getrandbits(32))
        for name in r.sample(NAMES, r.choice((0, 0, 1, 2, 5, 12))):
            found[name] = r.choice(VALUES).replace("%d", str(r.randrange(1000)))
        return found

    def _squeezed(self, sys_flag: int) -> tuple[bytes, int]:
        """A compressed body and its flags; 4.9.3 supports only zlib."""
        plain = f"squeeze me {self.count} ".encode() * self.r.randrange(1, 200)
        kind = self.r.choice((0, 1, 2, 3)) if self.store.version == "533" else 0
        if kind == 1:
            return lz4.frame.compress(plain), sys_flag | 0x101
        if kind == 2:
            return zstandard.ZstdCompressor().compress(plain), sys_flag | 0x201
        return zlib.compress(plain, 5), sys_flag | (0x301 if kind == 3 else 1)

    def _fitting(self, oracle: Oracle, message: dict[str, Any]) -> bytes:
        """A body whose record leaves 8 bytes free in the log file, or one more or less, or needs the next file."""
        message["props"], message["propsString"] = {}, "a\x01b"
        size = self.store.settings["mappedFileSizeCommitLog"]
        room = size - oracle.ask(op="wait")["maxPhy"] % size
        fixed = 91 + len(message["topic"].encode()) + 3
        fixed += 12 * (message["bornHost"].startswith("[") + message["storeHost"].startswith("["))
        wanted = room - 8 - fixed + self.r.choice((-1, 0, 0, 1, 5, 8))
        return self.r.randbytes(wanted) if 0 <= wanted < 20000 else b"fits"


def _address(r: random.Random, six: bool) -> str:
    if six:
        return f"[2001:db8::{r.randrange(1, 9999):x}]:{r.randrange(1, 65536)}"
    return f"10.{r.randrange(256)}.{r.randrange(256)}.{r.randrange(1, 255)}:{r.randrange(1, 65536)}"
