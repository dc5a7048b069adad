"""A queue that is open for publishing and fetching."""
