"""ROOM 1: bytes to arrays and back. Pure: no files, no locks, no Spark."""
