"""Converts bytes to arrays and back. Pure: no files, no locks, no Spark."""
