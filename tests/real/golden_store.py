"""Saves a store that a real broker made, and what its consumer receives, as a fixture below `tests/golden`."""

from __future__ import annotations

import gzip
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.reference.served import place


def keep(store: Path, consumed: Callable[[], list[dict[str, Any]]], target: Path) -> None:
    """Writes `<target>.tar.gz` with the store as it is now, then `<target>.truth.jsonl.gz` with what is consumed."""
    target.parent.mkdir(exist_ok=True)
    archive = ["tar", "-czSf", f"{target}.tar.gz", "-C", str(store.parent), store.name]
    subprocess.run(archive, check=True)
    messages = sorted(consumed(), key=place)
    with gzip.open(f"{target}.truth.jsonl.gz", "wt", encoding="utf-8") as lines:
        lines.writelines(json.dumps(message) + "\n" for message in messages)
