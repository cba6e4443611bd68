"""P17-accelerate: rows per second of Accelerate inside Evergreen and under plain Ray Train."""

from benchmarks.baselines.framework_pair import framework_row

ROW = framework_row("accelerate", "Accelerate")
