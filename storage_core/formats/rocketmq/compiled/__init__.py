"""Compiled loops over records, properties, queue entries and index entries; their numpy twins document the rules."""
