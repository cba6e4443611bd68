"""P17-lightning: rows per second of Lightning inside Evergreen and under plain Ray Train."""

from benchmarks.baselines.framework_pair import framework_row

ROW = framework_row("lightning", "Lightning")
