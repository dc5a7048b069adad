"""A stock store started on a directory: whether it loads, what it serves, and what it accepts."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from tests.real.oracle import Oracle

TAKEN = 3


class Visit:
    """What a real store did with a directory: nothing if it refused it, else what it served and what it accepted."""

    def __init__(self, version: str, directory: Path, settings: dict[str, Any]) -> None:
        self.served: list[bytes] = []
        self.taken: list[bytes] = []
        with Oracle(version, directory, settings) as oracle:
            self.loaded = oracle.loaded
            if oracle.loaded:
                oracle.ask(op="wait")
                self.served = [base64.b64decode(m.get("decoded64") or m["body64"] or "") for m in oracle.all_messages()]
                for number in range(TAKEN):
                    self.taken.append(b"taken %d" % number)
                    answer = oracle.ask(op="put", topic="orders", queueId=number % 3, body=f"taken {number}",
                                        props={"KEYS": f"taken-{number}"}, bornTs=1)  # fmt: skip
                    assert answer["status"] == "PUT_OK"
                oracle.ask(op="wait")
