"""Benchmark harness: each side of a row runs in its own process, in alternation; paired ratios decide."""
