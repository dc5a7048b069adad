"""The engines under the contract, and those of them that are read as streams."""

from __future__ import annotations

from tests.contract.engine import Engine
from tests.contract.rabbitmq_engine import RabbitEngine
from tests.contract.rocketmq_engine import RocketEngine

ENGINES: tuple[Engine, ...] = (RocketEngine(), RabbitEngine())
STREAMING = ENGINES
