"""`mqstore repair`: repairs what `mqstore verify` finds, in a copy or in place."""

from __future__ import annotations

from typing import Any

import click

from command_line.outcome import DAMAGED, FINE, exit_code, say
from command_line.output.lines import line
from command_line.output.progress import shown_progress
from command_line.parameters import IntegerRange, json_option, store_argument, switches
from command_line.selection import selection
from command_line.stores import lone, opened
from command_line.views import print_json
from storage_core import open_store
from storage_core.errors import OptionError

EXAMPLES = """\b
Examples:
  mqstore repair STORE --dry-run
  mqstore repair /disks/dead-broker/store --to /data/repaired
  mqstore repair STORE --in-place        keeps what it cuts below STORE/.mqstore/cut
  mqstore repair STORE --to DIR --json   what was done and what is left, one JSON object a line
"""


@click.command("repair", epilog=EXAMPLES)
@store_argument
@click.option("--to", "target", metavar="DIR", help="Repair a copy in this new directory; STORE is only read.")
@click.option("--in-place", is_flag=True, help="Repair STORE itself; every byte that is cut is saved.")
@click.option("--dry-run", is_flag=True, help="Print what would be done, but change nothing.")
@click.option("--index-slots", type=IntegerRange(1), help="maxHashSlotNum of the broker, for a lost index.")
@click.option("--index-entries", type=IntegerRange(2), help="maxIndexNum of the broker.")
@switches("engine", "recovery", "commitLogPath", "storage")
@json_option
@exit_code
def command(
    store: str, target: str | None, in_place: bool, dry_run: bool, index_slots: int | None, index_entries: int | None,
    as_json: bool, **given: Any,
) -> int:  # fmt: skip
    """Repairs STORE: finishes an unfinished write, cuts torn ends, and leads a broker past the damage, so that all
    intact messages are served again.

    RocketMQ: damaged queues and index are rebuilt from the log. RabbitMQ: index entries whose message is missing are
    dropped. The broker must be stopped. If a repair is interrupted, run it again. Findings that are left are printed,
    with exit code 1; --json prints a line for each step that is planned or done, and for each finding that is left.
    """
    if [target is not None, in_place, dry_run].count(True) != 1:
        raise OptionError("STORE", store, "give one of --to DIR, --in-place and --dry-run")
    wanted = selection(given)
    geometry = {"indexSlots": index_slots, "indexEntries": index_entries}
    options = {**wanted.store_options, **{name: str(value) for name, value in geometry.items() if value is not None}}
    with opened(store, wanted.options.engine, None, options) as stores, shown_progress() as progress:
        found = lone(stores, store, "one is repaired at a time").store
        lines = found.repair(target, dry_run)
        for text in lines:
            progress.clear()
            if as_json:
                print_json([{"planned" if dry_run else "done": text}])
            else:
                line(text)
        if dry_run:
            return FINE
        path, options = (found.path, wanted.store_options) if target is None else (target, {})
        return _left(path, options, as_json)


def _left(path: str, options: dict[str, str], as_json: bool) -> int:
    """Reports what is still damaged; returns the exit code."""
    with open_store(path, **options) as store:
        left = list(store.verify())
    for finding in left:
        if as_json:
            print_json([{"left": vars(finding)}])
        else:
            say(f"left: {finding.file} at {finding.position}: {finding.kind}: {finding.reason}")
    return DAMAGED if left else FINE
