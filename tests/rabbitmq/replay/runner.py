"""Runs a script of queue operations on a paging queue, and yields its state after each operation.

The modules `operations` and `state` define the script's operations and the members of a state. Source:
tests/rabbitmq/replay/README.md.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from storage_core.errors import FormatError
from storage_core.formats.rabbitmq.erlang import erlang_text
from tests.rabbitmq.replay.operations import Player, ScriptError
from tests.rabbitmq.replay.state import state_of


def replay(script: str, directory: str, clock: Callable[[], float] = time.monotonic) -> Iterator[dict[str, Any]]:
    """The lines of a replay of the text `script`, run in `directory`. Raises ScriptError if the queue refuses a line.

    `clock` returns seconds; it matters only after the operation `real_rates`.
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
