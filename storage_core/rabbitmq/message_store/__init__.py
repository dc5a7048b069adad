"""The shared message store."""
