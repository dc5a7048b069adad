"""Changes host ports in the log: to invalid ones, and to the largest valid one."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from tests.reference.rocketmq_record import Log

BORN_V6, STORE_V6 = 0x10, 0x20
ODD = (("born", 0x10000), ("born", -5), ("store", 0x10000), ("store", -1 << 31), ("born", 0x7FFFFFFF))
LARGEST = (("born", 0xFFFF), ("store", 0xFFFF))


def give_ports(store: Path, addresses: Sequence[int]) -> tuple[list[int], dict[int, str]]:
    """Changes records at some of the ascending addresses, with both kinds of hosts if both exist. Returns the addresses
    of those with invalid ports, and of those with the largest port, each with the column that shows it.
    """
    log = Log(store / "commitlog")
    fields = {at: log.fields(at) for at in addresses}
    sixes = [at for at in addresses if fields[at]["sysFlag"] & (BORN_V6 | STORE_V6)]
    fours = [at for at in addresses if at not in sixes]
    chosen = [at for pair in zip(sixes[1::7], fours[1::7], strict=False) for at in pair] or fours[1::7]
    odd, well = chosen[: len(ODD)], chosen[len(ODD) : len(ODD) + len(LARGEST)]
    for at, (which, port) in zip([*odd, *well], [*ODD, *LARGEST], strict=True):
        _write_port(store, log, fields[at], which, port)
    return odd, {at: f"{which}Host" for at, (which, _) in zip(well, LARGEST, strict=True)}


def _write_port(store: Path, log: Log, fields: dict[str, int], which: str, port: int) -> None:
    born, stored = (20 if fields["sysFlag"] & bit else 8 for bit in (BORN_V6, STORE_V6))
    base = max(base for base in log.files if base <= fields["physicalOffset"])
    end = fields["physicalOffset"] - base + 48 + born + (0 if which == "born" else 8 + stored)
    with (store / "commitlog" / f"{base:020d}").open("r+b") as file:
        file.seek(end - 4)
        file.write(struct.pack(">i", port))
