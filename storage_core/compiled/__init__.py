"""Loops compiled by numba, if it is installed (extra `mqstore[fast]`): when they are used, and what they may call."""
