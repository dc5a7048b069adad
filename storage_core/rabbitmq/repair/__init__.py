"""Mends what `verify` finds in a vhost's store: its message files in place, its index by as few records as it takes."""
