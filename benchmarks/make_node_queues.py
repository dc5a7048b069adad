"""Builds a large stream, quorum queue and classic queue from messages that a real node wrote.

The node's folder is a fixture of the tests. For the first two, one message gets a body of the requested size and is
repeated; for a classic queue, all messages are repeated unchanged. Every byte except the body, numbers and checksums
was written by a node.
"""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path
from zlib import crc32

import numpy as np

from storage_core.formats.rabbitmq import paths
from storage_core.formats.rabbitmq.classic import queue_v2
from storage_core.formats.rabbitmq.erlang import external_term
from storage_core.formats.rabbitmq.erlang.term_spans import elements
from storage_core.formats.rabbitmq.quorum import raft_segment
from storage_core.formats.rabbitmq.stream_queues.log_files import CHUNK, INDEX_HEAD, INDEX_RECORD, SEGMENT_HEAD, USER
from storage_core.rabbitmq.disk.raft_log import read_log, read_wals
from storage_core.rabbitmq.quorum.directory import list_queues

FIXTURES = Path(__file__).parents[1] / "tests" / "golden" / "rabbitmq"
STREAM, QUORUM, QUEUE = "s02_kill_publishing", "q01_clean", "plain"
KINDS = {"streams": "stream", "quorum": "quorum", "snapshots": "vhosts"}
VHOST = b"/"
PER_CHUNK, SEGMENT_SIZE = 200, 500_000_000
PER_SEGMENT = 4096
DATA_SECTION = b"\x00\x53\x75\xa0"
ENQUEUE = b"d\x00\x07enqueue"


def make_stream(folder: Path, count: int, body_size: int) -> str:
    """Makes a stream of `count` messages below `folder`, in segments as a node cuts them. Returns its node's folder."""
    node = _unpacked("streams", STREAM, folder)
    (stream,) = (path for path in node.iterdir() if path.is_dir())
    (segment,) = stream.glob("*.segment")
    data = segment.read_bytes()
    head = np.frombuffer(data, CHUNK.dtype, 1, len(SEGMENT_HEAD)).copy()
    entry = _with_body(_first_entry(data), body_size)
    for path in stream.glob("0*"):
        path.unlink()
    chunk = (len(entry).to_bytes(4, "big") + entry) * PER_CHUNK
    head["type"], head["entries"], head["records"], head["crc"] = USER, PER_CHUNK, PER_CHUNK, crc32(chunk)
    head["data_size"], head["trailer_size"] = len(chunk), 0
    of_segment = max(SEGMENT_SIZE // (CHUNK.size + len(chunk)), 1) * PER_CHUNK
    for first in range(0, count, of_segment):
        _write_segment(stream, head, chunk, first, min(count, first + of_segment))
    return str(node)


def _write_segment(stream: Path, head: np.ndarray, chunk: bytes, first: int, stop: int) -> None:
    numbers = np.arange(first, stop, PER_CHUNK)
    heads = np.repeat(head, len(numbers))
    heads["id"], heads["time"] = numbers, int(head["time"][0]) + numbers // PER_CHUNK
    records = np.zeros(len(numbers), INDEX_RECORD.dtype)
    for name in ("id", "time", "epoch", "type"):
        records[name] = heads[name]
    records["position"] = len(SEGMENT_HEAD) + np.arange(len(numbers)) * (CHUNK.size + len(chunk))
    name = f"{first:020d}"
    (stream / f"{name}.segment").write_bytes(SEGMENT_HEAD + b"".join(each.tobytes() + chunk for each in heads))
    (stream / f"{name}.index").write_bytes(INDEX_HEAD + records.tobytes())


def _first_entry(data: bytes) -> bytes:
    at = len(SEGMENT_HEAD) + CHUNK.size
    return data[at + 4 : at + 4 + int.from_bytes(data[at : at + 4], "big")]


def _with_body(entry: bytes, size: int) -> bytes:
    """The sections of a message with its body replaced."""
    at = entry.index(DATA_SECTION) + len(DATA_SECTION)
    body = np.random.default_rng(1).integers(0, 256, size, np.uint8).tobytes()
    return entry[:at] + bytes([size]) + body + entry[at + 1 + entry[at] :]


def make_quorum(folder: Path, count: int, body_size: int) -> str:
    """Makes a quorum queue of `count` ready messages below `folder`, all in segments. Returns its node's folder."""
    root = _unpacked("quorum", QUORUM, folder)
    queues, _ = list_queues(str(root))
    (queue,) = (each for each in queues if each.name[1] == QUEUE)
    log = read_log(str(root), queue.folder, read_wals(str(root)))
    entries: list[bytes] = []
    for entry in (each for chunk in log.chunks() for each in chunk):
        data = (root / log.files[int(entry["file"])]).read_bytes()[int(entry["position"]) :][: int(entry["size"])]
        if ENQUEUE in data:
            entries += _enqueues(data, count, body_size)
            break
        entries.append(data)
    for path in root.glob("*.wal"):
        path.unlink()
    for other in queues:
        if other is not queue:
            shutil.rmtree(root / other.folder)
    for number, first in enumerate(range(0, len(entries), PER_SEGMENT), 1):
        data = _raft_segment(entries[first : first + PER_SEGMENT], first)
        (root / queue.folder / f"{number:08d}.segment").write_bytes(data)
    return str(root)


def _enqueues(entry: bytes, count: int, body_size: int) -> list[bytes]:
    """`count` copies of one enqueue with another body, each with the publisher's next number."""
    command = elements(entry, elements(entry, 1)[2][0])
    low, high = command[2]
    body = external_term.decode(entry)[2][3][3][5][0]
    old = b"m" + len(body).to_bytes(4, "big") + body
    at = entry.rindex(old)
    new = np.random.default_rng(1).integers(0, 256, body_size, np.uint8).tobytes()
    head = entry[:low] + bytes([external_term.INTEGER])
    tail = entry[high:at] + b"m" + body_size.to_bytes(4, "big") + new + entry[at + len(old) :]
    return [head + number.to_bytes(4, "big") + tail for number in range(1, count + 1)]


def _raft_segment(entries: list[bytes], first: int) -> bytes:
    """A segment of entries with the raft indexes from `first` on, without checksums, which are optional."""
    sizes = np.array([len(each) for each in entries])
    table = np.zeros(PER_SEGMENT, raft_segment.INDEX.dtype)
    filled = table[: len(entries)]
    filled["index"], filled["term"], filled["size"] = first + np.arange(len(entries)), 1, sizes
    filled["position"] = raft_segment.HEADER_SIZE + table.nbytes + np.cumsum(sizes) - sizes
    head = np.array([(raft_segment.MAGIC, 2, PER_SEGMENT)], raft_segment.HEADER.dtype)
    return head.tobytes() + table.tobytes() + b"".join(entries)


def make_classic(folder: Path, snapshot: str, queue: str, least: int) -> tuple[str, int]:
    """Makes a queue of version 2 as after a kill, in full segments. Returns the path of its virtual host, and how many
    messages it has, `least` or a few more.
    """
    vhost = next((_unpacked("snapshots", snapshot, folder)).iterdir())
    for name in ("recovery.dets", "msg_store_persistent/clean.dot", "msg_store_transient/clean.dot"):
        (vhost / name).unlink()
    folders = [vhost / "queues" / paths.queue_directory(VHOST, queue.encode(), priority) for priority in (None, 0)]
    own = next(folder for folder in folders if (folder / "0.qi").exists())
    for other in (vhost / "queues").iterdir():
        if other != own:
            shutil.rmtree(other)
    index, store = ((own / name).read_bytes()[queue_v2.HEADER.size :] for name in ("0.qi", "0.qs"))
    entries = np.frombuffer(index, queue_v2.ENTRY.dtype, len(index) // queue_v2.ENTRY.size)
    copies = queue_v2.SEGMENT_ENTRY_COUNT // len(entries)
    entries = np.tile(entries, copies)
    addresses = entries["address"].copy().view(queue_v2.ADDRESS.dtype)
    addresses["position"] += np.repeat(np.arange(copies, dtype=np.uint64) * len(store), len(entries) // copies)
    entries["address"] = addresses.view("V16")
    segments = -(-least // len(entries))
    for number in range(segments):
        head = queue_v2.encode_header(queue_v2.INDEX_MAGIC, number)
        (own / f"{number}.qi").write_bytes(head + entries.tobytes())
        head = queue_v2.encode_header(queue_v2.STORE_MAGIC, number)
        (own / f"{number}.qs").write_bytes(head + store * copies)
    return str(vhost), segments * len(entries)


def _unpacked(kind: str, name: str, folder: Path) -> Path:
    with tarfile.open(FIXTURES / kind / f"{name}.tar.gz") as archive:
        archive.extraction_filter = getattr(tarfile, "tar_filter", None)
        archive.extractall(folder)
    return next(path for path in (folder / KINDS[kind]).iterdir()) if kind == "quorum" else folder / KINDS[kind]
