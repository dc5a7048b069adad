"""Commands of the worker that republishes dead letters of a quorum queue at least once.

Source: docs/format/rabbitmq-quorum.md 10. Which messages wait for it, and how it gets them, is decided by `machine`.
"""

from __future__ import annotations

from typing import Any

from storage_core.rabbitmq.quorum.machine.machine import AT_LEAST_ONCE, Machine
from storage_core.rabbitmq.quorum.machine.state import DeadLetterWorker


def apply(machine: Machine, now: int, command: Any) -> None:
    """Applies {checkout, pid, prefetch}, a new worker, or {settle, ids}, messages that the worker has published."""
    state = machine.state
    worker = state.worker
    if state.settings.dead_letters == AT_LEAST_ONCE and isinstance(command, tuple):
        if command[0] == "settle" and worker is not None:
            for number in command[1]:
                if number in worker.checked_out:
                    state.forget(worker.checked_out.pop(number))
        elif command[0] == "checkout":
            if worker is not None:
                state.discards.extendleft(reversed([worker.checked_out[key] for key in sorted(worker.checked_out)]))
            state.worker = DeadLetterWorker(int(command[2]))
    machine.serve(now)
