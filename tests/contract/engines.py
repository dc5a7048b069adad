"""The engines that keep the contract, and those of them that have streams."""

from __future__ import annotations

from tests.contract.engine import Engine
from tests.contract.rabbitmq_engine import RabbitEngine
from tests.contract.rocketmq_engine import RocketEngine

ENGINES: tuple[Engine, ...] = (RocketEngine(), RabbitEngine())
STREAMING = ENGINES[:1]
"""RabbitMQ stores are not read as streams in this version (docs/streaming.md)."""
