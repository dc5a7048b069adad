"""Benchmarks: our reads against ceilings and peers, measured side by side in one run. `python -m benchmarks`."""
