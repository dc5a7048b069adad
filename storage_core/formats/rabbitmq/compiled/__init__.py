"""Compiled loops over the records of RabbitMQ's files; the rules stand at their twins."""
