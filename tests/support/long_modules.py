"""Modules that `make test-fast` omits: they use neither Java nor samples, yet take over five seconds each."""

from __future__ import annotations

LONG = (
    "tests/benchmarks/test_smoke.py",
    "tests/command_line/test_commands.py",
    "tests/command_line/test_mistakes.py",
    "tests/contract/test_plan.py",
    "tests/formats/rabbitmq/test_messages.py",
    "tests/rabbitmq/test_pushdown.py",
    "tests/rabbitmq/test_replay.py",
    "tests/rocketmq/test_leftovers.py",
    "tests/rocketmq/test_repair.py",
    "tests/rocketmq/test_verify.py",
    "tests/test_page_blocks.py",
)
