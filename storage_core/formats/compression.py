"""Inflates message bodies: zlib, LZ4 frames and zstd (rocketmq.md 2.3), up to a size limit.

Only bodies flagged as compressed are passed in, one at a time: the cost is in the decompression, not in the call.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

import lz4.frame
import zstandard

MAX_BODY_SIZE = 64 << 20


class InflateError(ValueError):
    """A body is flagged as compressed but does not inflate, or inflates to more than MAX_BODY_SIZE."""


def inflate(body: bytes, kind: int) -> bytes:
    """The original body; `kind` is sysFlag bits 8-10: 0 and 3 zlib, 1 LZ4 frame, 2 zstd.

    Raises InflateError.
    """
    method = _METHODS.get(kind)
    if method is None:
        raise InflateError(f"unknown compression type {kind}")
    try:
        data = method(body)
    except (zlib.error, RuntimeError, zstandard.ZstdError, EOFError) as error:
        raise InflateError(str(error)) from None
    if len(data) > MAX_BODY_SIZE:
        raise InflateError(f"it inflates to more than {MAX_BODY_SIZE} bytes")
    return data


def _zlib(body: bytes) -> bytes:
    stream = zlib.decompressobj()
    data = stream.decompress(body, MAX_BODY_SIZE + 1)
    if not stream.eof and len(data) <= MAX_BODY_SIZE:
        raise zlib.error("the stream is not complete")
    return data


def _lz4(body: bytes) -> bytes:
    stream = lz4.frame.LZ4FrameDecompressor()
    data: bytes = stream.decompress(body, max_length=MAX_BODY_SIZE + 1)
    if not stream.eof and len(data) <= MAX_BODY_SIZE:
        raise EOFError("the frame is not complete")
    return data


def _zstd(body: bytes) -> bytes:
    stream = zstandard.ZstdDecompressor().decompressobj(read_across_frames=False)
    parts, size = [], 0
    for start in range(0, len(body), 1 << 16):
        part = stream.decompress(body[start : start + (1 << 16)])
        parts.append(part)
        size += len(part)
        if stream.eof or size > MAX_BODY_SIZE:
            break
    if not stream.eof and size <= MAX_BODY_SIZE:
        raise EOFError("the frame is not complete")
    return b"".join(parts)


_METHODS: dict[int, Callable[[bytes], bytes]] = {0: _zlib, 3: _zlib, 1: _lz4, 2: _zstd}
