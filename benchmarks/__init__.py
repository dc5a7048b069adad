"""Benchmarks: reads and writes against ceilings and peers, measured side by side in one run. `python -m benchmarks`."""
