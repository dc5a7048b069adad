"""Repairs what `verify` finds in a vhost's store: message files in place, the index with as few records as possible."""
