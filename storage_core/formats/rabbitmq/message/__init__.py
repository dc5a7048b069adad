"""Byte formats of messages."""
