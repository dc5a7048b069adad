"""Writes bytes to disk and reads them back. Depends on no engine and no format."""
