"""Compiled loops over records, properties, queue entries and index entries; the rules stand at their twins in numpy."""
