"""ROOM 3a: the RocketMQ engine."""
