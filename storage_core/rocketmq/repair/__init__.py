"""Mends what `verify` finds: the log in place, queues and index made anew from it."""
