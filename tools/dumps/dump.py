"""An annotated hexdump: pieces of one file, each with its position, its bytes, a name and a value.

The meaning of the bytes of a file is defined in `rocketmq`, `rabbitmq` and `terms`.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

import numpy as np

from storage_core.formats.layout import Field, Struct

GOLDEN = Path(__file__).resolve().parent.parent.parent / "tests" / "golden"
SHOWN = 16
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Line:
    """One piece: `raw` is at `position` and is called `field`. A gap has no bytes and states what is left out."""

    position: int
    raw: bytes
    field: str
    value: str


class Dump:
    """Splits a file into pieces from a position on, in order."""

    def __init__(self, source: str, content: bytes, position: int = 0) -> None:
        """`source` names the golden file, as it is shown above the dump."""
        self.source = source
        self.content = content
        self.position = position
        self.start = position
        self.lines: list[Line] = []

    def take(self, size: int, field: str, value: Callable[[bytes], str]) -> bytes:
        """Shows the next `size` bytes. Raises ValueError if the file ends before them."""
        raw = self.content[self.position : self.position + size]
        if len(raw) != size:
            raise ValueError(f"{self.source}: {size} bytes wanted at {self.position}, the file ends after {len(raw)}")
        self.lines.append(Line(self.position, raw, field, value(raw)))
        self.position += size
        return raw

    def number(self, size: int, field: str, value: Callable[[int], str] = str) -> int:
        """Shows the next `size` bytes as an unsigned number."""
        return int.from_bytes(self.take(size, field, lambda raw: value(int.from_bytes(raw, "big"))), "big")

    def struct(self, layout: Struct, **values: Callable[[int], str]) -> dict[str, int]:
        """Shows the fields of a layout, and returns its numbers; `values` defines how a field's number is written."""
        numbers: dict[str, int] = {}
        for field in layout.fields:
            raw = self.content[self.position : self.position + field.width]
            if np.dtype(field.disk).kind == "V":
                self.take(field.width, field.name, raw_bytes)
                continue
            number = numbers[field.name] = int(np.frombuffer(raw, field.disk)[0])
            self.take(field.width, field.name, _always(values.get(field.name, _usual(field))(number)))
        return numbers

    def skip_to(self, position: int, why: str) -> None:
        """Leaves out the bytes before `position`, and shows one line that states this."""
        self.lines.append(Line(self.position, b"", "", f"… {position - self.position:,} bytes: {why}"))
        self.position = position

    def text(self) -> str:
        """The dump: one line per piece, `offset  bytes  field = value`."""
        width = max((len(_hex(line.raw)) for line in self.lines), default=0)
        lines = [f"{'offset':>8}  {'bytes':<{width}}  field = value"]
        for line in self.lines:
            text = f"{line.field} = {line.value}" if line.field else line.value
            lines.append(f"{line.position:>8}  {_hex(line.raw):<{width}}  {text}".rstrip())
        return "\n".join(lines)


def golden(path: str) -> bytes:
    """A golden file; `archive.tar.gz!member` names one inside an archive."""
    archive, _, member = path.partition("!")
    if not member:
        return (GOLDEN / archive).read_bytes()
    with tarfile.open(GOLDEN / archive) as packed:
        inside = packed.extractfile(member)
        if inside is None:
            raise ValueError(f"{path} is no file")
        return inside.read()


def opened(path: str, position: int = 0) -> Dump:
    """A dump of a golden file from `position` on."""
    return Dump(f"tests/golden/{path.replace('!', ': ')}", golden(path), position)


def milliseconds(number: int) -> str:
    """A time in ms since 1970, also as a date."""
    return f"{number} ({(EPOCH + timedelta(milliseconds=number)).strftime('%Y-%m-%d %H:%M:%S.%f')[:-3]} UTC)"


def microseconds(number: int) -> str:
    """A time in µs since 1970, 0 for none."""
    return milliseconds(number // 1000).replace(str(number // 1000), str(number), 1) if number else "0 (none)"


def address(number: int) -> str:
    """An IPv4 address."""
    return str(IPv4Address(number))


def hexadecimal(number: int) -> str:
    """A number in hexadecimal, as the source code spells it."""
    return f"0x{number:08X}"


def quoted(raw: bytes) -> str:
    """Text in quotes, with control characters as escapes; long text is cut."""
    text = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in raw.decode(errors="replace"))
    return f'"{text}"' if len(text) <= 64 else f'"{text[:60]}…" ({len(raw)} bytes)'


def raw_bytes(raw: bytes) -> str:
    """Bytes without a meaning of their own."""
    if len(raw) > SHOWN:
        return f"{len(raw)} bytes" if any(raw) else f"{len(raw)} zeros"
    return raw.hex()


def zeros(raw: bytes) -> str:
    """Unused bytes. Raises ValueError if they are not all zero."""
    if any(raw):
        raise ValueError(f"{len(raw)} bytes are not all zero")
    return f"{len(raw):,} zeros"


def _usual(field: Field) -> Callable[[int], str]:
    if field.name.endswith("_ms"):
        return milliseconds
    if field.name == "magic":
        return hexadecimal
    if field.name.endswith("_address"):
        return address
    return str


def _always(text: str) -> Callable[[bytes], str]:
    return lambda _: text


def _hex(raw: bytes) -> str:
    shown = raw if len(raw) <= SHOWN else raw[: SHOWN - 4]
    groups = " ".join(shown[at : at + 4].hex() for at in range(0, len(shown), 4))
    return groups if shown is raw else f"{groups} …"
