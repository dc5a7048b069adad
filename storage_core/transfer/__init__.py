"""Copies of stores between a disk and a URI: `mqstore copy`, both ways. Source: docs/object-storage.md "Copies"."""
