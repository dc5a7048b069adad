"""What a stream is, whatever the engine: its offsets in a checkpoint, and how much of a store one micro-batch reads."""
