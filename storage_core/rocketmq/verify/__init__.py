"""Everything that is wrong in a store, found by reading all of it."""
