"""Annotated hexdumps of files that the real systems wrote, for the pages in `docs/format/`."""
