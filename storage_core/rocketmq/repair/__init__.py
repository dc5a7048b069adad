"""Repairs what `verify` finds: the log in place, queues and index by rebuilding them from the log."""
