"""Benchmarks: each `bench_NAME.py` has a `main()` that returns a dict of plain numbers and text."""
