"""A message's bytes."""
