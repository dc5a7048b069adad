"""Compiled loops over the records of RabbitMQ's files; their numpy twins document the rules."""
