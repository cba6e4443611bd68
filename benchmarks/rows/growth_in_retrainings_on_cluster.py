"""P14, cluster: :mod:`benchmarks.rows.growth_in_retrainings` with two workers on one cluster."""

from benchmarks.rows.growth_in_retrainings import ON_A_CLUSTER as ROW

__all__ = ["ROW"]
