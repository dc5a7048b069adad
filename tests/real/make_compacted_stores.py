"""Makes the stores of tests/golden/rocketmq/compacted anew: `python -m tests.real.make_compacted_stores`.

Each with what a consumer of the real broker gets: one that was stopped after compactions, and one that was killed.
"""

from __future__ import annotations

import gzip
import json
import random
import subprocess
import tempfile
from pathlib import Path

from tests.golden.archive import GOLDEN
from tests.real.compacted import NEVER_MS, OFTEN_MS, Story
from tests.reference.served import place

TARGET = GOLDEN / "rocketmq" / "compacted"
SEED = 20261129
VISITS = {
    "stopped-5.3.3": ((OFTEN_MS, False), (NEVER_MS, False)),
    "killed-5.3.3": ((OFTEN_MS, False), (OFTEN_MS, True)),
}


def main() -> None:
    """Writes an archive and its truth for each of VISITS."""
    TARGET.mkdir(exist_ok=True)
    for name, visits in VISITS.items():
        with tempfile.TemporaryDirectory() as folder:
            story = Story(Path(folder) / "store", random.Random(f"{SEED} {name}"))
            for interval_ms, kill in visits:
                story.visit(interval_ms, kill)
            archive = ["tar", "-czSf", str(TARGET / f"{name}.tar.gz"), "-C", folder, "store"]
            subprocess.run(archive, check=True)
            messages = sorted(story.consumed(), key=place)
        with gzip.open(TARGET / f"{name}.truth.jsonl.gz", "wt", encoding="utf-8") as lines:
            lines.writelines(json.dumps(message) + "\n" for message in messages)


if __name__ == "__main__":
    main()
