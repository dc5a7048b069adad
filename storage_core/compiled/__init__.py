"""Loops compiled by numba, where it is installed (extra `fast`): when they are used, and what they may call."""
