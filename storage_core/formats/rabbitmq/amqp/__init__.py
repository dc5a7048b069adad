"""AMQP in bytes: tables, property lists and sections."""
