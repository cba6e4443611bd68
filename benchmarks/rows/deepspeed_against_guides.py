"""P17-deepspeed: rows per second of DeepSpeed's ZeRO 2 inside Evergreen and under plain Ray Train."""

from benchmarks.baselines.framework_pair import framework_row

ROW = framework_row(
    "deepspeed",
    "DeepSpeed's ZeRO 2",
    optimizer="fused AdamW",
    note="both sides without DeepSpeed's compiled all-reduce, which Evergreen switches off",
)
