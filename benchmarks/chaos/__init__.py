"""Fault matrix with real processes: inject a fault into a retraining, and rerun the same command until it succeeds.

    make chaos
    make chaos ARGS="--faults F1,F2 --trainer xgboost --trials 3 --seed 7"
    python -m benchmarks.chaos --list

Every fault is tried on a training of each trainer that it concerns. Every trial has its own home and is checked by
`tasks.verify` against an undisturbed run. Each trial adds one line to `chaos.jsonl`; `chaos.md` has the table. The seed
determines every random draw, but not the instruction at which a signal arrives.
"""
