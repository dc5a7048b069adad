"""Everything that is wrong in a vhost's store, found by reading all of it."""
