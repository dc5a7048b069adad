"""`python -m tests.rabbitmq.replay SCRIPT`: runs a script of queue operations and prints the state after each.

Source: tests/rabbitmq/replay/README.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from storage_core.errors import MqStoreError
from tests.rabbitmq.replay.runner import replay


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 when all operations ran, 1 with one line on stderr when one was refused."""
    parser = argparse.ArgumentParser(prog="python -m tests.rabbitmq.replay", description=__doc__)
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
