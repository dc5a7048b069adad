"""Finds everything that is wrong in a store, by reading all of it."""
