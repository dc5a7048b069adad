"""`python -m benchmarks`: measures the questions, prints the findings, writes `results.md` and `results.png`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import click

from benchmarks import machine, report
from benchmarks.decoder import decoder
from benchmarks.find import find
from benchmarks.kafka import kafka
from benchmarks.rabbitmq import rabbitmq
from benchmarks.remote import remote
from benchmarks.scan import scan
from benchmarks.shape import shape
from benchmarks.streams import streams
from benchmarks.verify import verify
from benchmarks.write import write

HERE = Path(__file__).resolve().parent
QUESTIONS: dict[str, Callable[[Path, float, int], report.Section]] = {
    "scan": scan, "decoder": decoder, "shape": shape, "write": write, "find": find, "rabbitmq": rabbitmq,
    "streams": streams, "verify": verify, "remote": remote, "kafka": kafka,
}  # fmt: skip
TOUCHED_BYTES = 8 << 30
QUICK_SCALE = 0.05


@click.command()
@click.argument("questions", nargs=-1, type=click.Choice(list(QUESTIONS)))
@click.option("--quick", is_flag=True, help="The same as --scale 0.05.")
@click.option("--scale", default=1.0, show_default=True, help="Size of the stores; only the figures of 1 say anything.")
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1), help="Runs of each contender.")
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), help="Where stores are made (8 GB).")
@click.option("--results", default=HERE, type=click.Path(file_okay=False, path_type=Path), help="Where results go.")
def main(
    questions: tuple[str, ...], quick: bool, scale: float, rounds: int, folder: Path | None, results: Path
) -> None:
    """Measures QUESTIONS, or all of them.

    scan (Spark), decoder (one process), shape (kinds of stores), write (Spark, then one process),
    find (one process, then Spark), rabbitmq (Spark, then one process), streams (Spark),
    verify (one process),
    remote (one process, a bucket in memory), kafka (Spark, a broker whose jars Maven fetches).
    """
    began, scale = perf_counter(), QUICK_SCALE if quick else scale
    lines = machine.description()
    if scale >= 1:
        lines.append(f"{machine.touch_memory(TOUCHED_BYTES) / (1 << 30):.0f} GiB of memory touched before measuring")
    print("mqstore benchmarks:", *lines, sep="\n  ", flush=True)
    sections = []
    for name in questions or QUESTIONS:
        print(f"\n{name}", flush=True)
        with tempfile.TemporaryDirectory(prefix="mqstore-bench-", dir=folder) as work:
            os.environ["XDG_CACHE_HOME"] = f"{work}/cache"  # nothing cached by an earlier run
            sections.append(QUESTIONS[name](Path(work), scale, rounds))
        # Written after each question, so that an interrupted run keeps its findings.
        took = f"{(perf_counter() - began) / 60:.0f} minutes"
        kind = "full size" if scale == 1 else f"scale {scale}, so the figures say nothing"
        command = " ".join(["python -m benchmarks", *questions])
        how = f"Written by `{command}` ({kind}; {rounds} rounds; {took}). Contenders take turns within each round."
        results.mkdir(parents=True, exist_ok=True)
        (results / "results.md").write_text(report.markdown(lines, sections, how))
        report.draw(sections, results / "results.png")
    print(f"\nwritten: {results / 'results.md'}, {results / 'results.png'}")


if __name__ == "__main__":
    main()
