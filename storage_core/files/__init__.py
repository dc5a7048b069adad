"""Bytes to disk and back. Knows no engine and no format."""
