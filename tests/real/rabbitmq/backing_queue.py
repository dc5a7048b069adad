"""The real rabbit_variable_queue, driven by a script inside a node: `vq_oracle.erl`, compiled for the run."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.real.rabbitmq.node import Node

SOURCE = Path(__file__).with_name("vq_oracle.erl")


class BackingQueue:
    """Runs scripts on `node`, which must be running; `folder` receives the compiled module."""

    def __init__(self, node: Node, folder: Path) -> None:
        self.node, self.folder = node, folder
        subprocess.run(["erlc", "-o", str(folder), str(SOURCE)], check=True)
        node.eval(f'code:purge(vq_oracle), code:load_abs("{folder / SOURCE.stem}").')

    def run(self, scripts: Sequence[Path]) -> list[Path]:
        """One file per script, with one JSON line per step. Raises RuntimeError if a script crashes the real queue."""
        answers = [script.with_suffix(".jsonl") for script in scripts]
        pairs = ",".join(f'{{"{script}","{out}"}}' for script, out in zip(scripts, answers, strict=True))
        done = self.node.eval(f"[vq_oracle:run(S, O) || {{S, O}} <- [{pairs}]].")
        if done.replace("ok", "").strip("[], \n"):
            raise RuntimeError(f"the real queue refused a script: {done[:2000]}")
        return answers
