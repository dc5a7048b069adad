"""Structured Streaming: the source that reads a store while it grows, and the sink that writes one."""
