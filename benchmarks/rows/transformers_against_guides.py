"""P17-transformers: rows per second of Transformers inside Evergreen and under plain Ray Train."""

from benchmarks.baselines.framework_pair import framework_row

ROW = framework_row("transformers", "Transformers", packages=("transformers", "accelerate"))
