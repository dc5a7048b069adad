"""A classic queue's index."""
