"""`python -m storage_core.rabbitmq.replay SCRIPT`: runs a script of queue operations and prints the state after each.

The script's operations are `replay_operations`', the printed members `replay_state`'s. Source: rabbitmq-replay.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from storage_core.errors import FormatError, MqStoreError
from storage_core.formats.rabbitmq import erlang_text
from storage_core.rabbitmq.replay_operations import Player, ScriptError
from storage_core.rabbitmq.replay_state import state_of


def replay(script: str, directory: str, clock: Callable[[], float] = time.monotonic) -> Iterator[dict[str, Any]]:
    """The lines of a replay of the text `script`, run in `directory`. ScriptError for what the queue refuses.

    `clock` gives seconds; it plays a part only after the operation `real_rates`.
    """
    try:
        terms = erlang_text.parse(script)
    except FormatError as error:
        raise ScriptError(str(error)) from None
    if not terms or not isinstance(terms[0], tuple) or terms[0][0] != "config":
        raise ScriptError("the first line must be {config, #{...}}.")
    player = Player(terms[0][1], directory, clock)
    try:
        yield {"n": 0, "op": "init", "result": None, **state_of(player.queue.state)}
        for number, operation in enumerate(terms[1:], 1):
            result = player.play(operation)
            op = erlang_text.render(operation)
            yield {"n": number, "op": op, "result": result, **state_of(player.queue.state)}
    finally:
        player.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 when all operations ran, 1 with one line on stderr when one was refused."""
    parser = argparse.ArgumentParser(prog="python -m storage_core.rabbitmq.replay", description=__doc__)
    parser.add_argument("script", metavar="SCRIPT")
    parser.add_argument("--keep", metavar="DIR", help="run in DIR, which is made, and leave it")
    options = parser.parse_args(arguments)
    try:
        script = Path(options.script).read_text()
        if options.keep:
            Path(options.keep).mkdir(parents=True)
            _print(script, options.keep)
        else:
            with tempfile.TemporaryDirectory(prefix="mqstore-replay-") as directory:
                _print(script, directory)
    except (MqStoreError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _print(script: str, directory: str) -> None:
    for line in replay(script, directory):
        sys.stdout.write(json.dumps(line) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
