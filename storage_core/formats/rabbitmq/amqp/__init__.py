"""Byte formats of AMQP: tables, property lists and sections."""
