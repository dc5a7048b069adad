"""Byte formats of RabbitMQ's classic, quorum and stream queues. Pure: the engine decides which file holds what."""
