"""P14, cluster: :mod:`benchmarks.rows.p14_again` with two workers on one cluster."""

from benchmarks.rows.p14_again import ON_A_CLUSTER as ROW

__all__ = ["ROW"]
