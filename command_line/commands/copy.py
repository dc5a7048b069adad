"""`mqstore copy`: a store from a URI to a broker's disk, or from a disk to a URI."""

from __future__ import annotations

import json
from typing import Any

import click

from command_line.outcome import FINE, exit_code, say
from command_line.output.lines import line
from command_line.output.progress import shown_progress
from command_line.output.units import counted, size_text
from command_line.parameters import json_option, switches
from command_line.selection import selection
from storage_core import copy_store, open_store

EXAMPLES = """\b
Examples:
  mqstore copy s3://backups/broker-a/store /data/store
  mqstore copy /data/store s3://backups/broker-a/2026-11-23
  mqstore copy /data/store s3://backups/broker-a/2026-11-23 --storage region=eu-west-1
"""
CHECKED = {
    "checksums": "sizes and checksums are those of the manifest",
    "sizes": "sizes only, there is no manifest with checksums; mqstore verify reads all",
    "up": "sizes of all objects; the manifest has the checksums",
}


@click.command("copy", epilog=EXAMPLES)
@click.argument("source", type=click.Path())
@click.argument("target", type=click.Path())
@switches("engine", "commitLogPath", "storage")
@json_option
@exit_code
def command(source: str, target: str, as_json: bool, **given: Any) -> int:
    """Copies a store: from a URI to a new directory, from which a broker can boot, or from a directory to a URI.

    If a copy is interrupted, run it again: it continues. An incomplete copy cannot be read as a store. A copy to a URI
    is refused while a broker runs on SOURCE; the log is copied first, and last a manifest with sizes and checksums.
    """
    wanted = selection(given)
    with shown_progress() as progress:
        done = copy_store(source, target, wanted.options.engine, **wanted.store_options)
        is_down = "://" in done.source
        left = _left(done.target, done.engine) if is_down else None
        progress.clear()
    facts = {
        "source": done.source, "target": done.target, "engine": done.engine, "files": done.files, "bytes": done.bytes,
        "resumedBytes": done.resumed_bytes, "checked": done.checked,
    }  # fmt: skip
    if as_json:
        line(json.dumps(facts, ensure_ascii=False))
    else:
        resumed = f", {size_text(done.resumed_bytes)} of them by an earlier run" if done.resumed_bytes else ""
        line(f"copied    {done.source} to {done.target}")
        line(f"files     {size_text(done.bytes)} in {counted(done.files, 'file')}{resumed}")
        line(f"checked   {CHECKED[done.checked if is_down else 'up']}")
    if left:
        say(left)
    return FINE


def _left(path: str, engine: str) -> str | None:
    """What must be done before a broker boots from the copy; None if nothing is found."""
    with open_store(path, engine) as store:
        state = store.state()
    if state.repairable or state.unfinished_write:
        return f"the copy is damaged as its source is; mqstore repair {path} --in-place mends it before a broker boots"
    return None
