"""P17-keras: rows per second of Keras on torch inside Evergreen and under plain Ray Train."""

from benchmarks.baselines.framework_pair import framework_row

ROW = framework_row("keras", "Keras", optimizer="fused AdamW")
