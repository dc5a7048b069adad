"""The files of a classic queue."""
