"""Bytes of RabbitMQ's classic queue stores, versions 1 and 2. Pure: which file holds what belongs to the engine."""
