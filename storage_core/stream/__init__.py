"""The common part of streams for all engines: offsets in a checkpoint, and how much one micro-batch reads."""
