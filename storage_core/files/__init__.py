"""ROOM 2: bytes to disk and back. Knows no engine and no format."""
