"""P17-fsdp: rows per second of FSDP2 inside Evergreen and under plain Ray Train."""

from benchmarks.baselines.framework_pair import framework_row

ROW = framework_row("fsdp", "FSDP2", packages=("torch",), optimizer="fused AdamW")
