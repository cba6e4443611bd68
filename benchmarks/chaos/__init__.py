"""The fault matrix with real processes: a retraining is hit at a random moment and the same command run until it ends.

    make chaos
    make chaos ARGS="--faults F1,F2 --trials 3 --seed 7"
    python -m benchmarks.chaos --list

Every trial has an installation of its own and is judged by `tasks.verify` against a run that nothing disturbed. One
line a trial goes to `chaos.jsonl`, the table to `chaos.md`. Every draw follows from the seed; which instruction a
signal meets does not.
"""
