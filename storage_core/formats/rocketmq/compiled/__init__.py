"""Compiled loops over records and properties; the rules stand at their twins in numpy, `message` and `properties`."""
