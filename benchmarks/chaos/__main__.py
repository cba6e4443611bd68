"""`python -m benchmarks.chaos`: run the trials of each fault, record one line for each, and write the table."""

import argparse
import itertools
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from benchmarks.chaos.bench import Bench, bench
from benchmarks.chaos.faults import Fault, all_faults
from benchmarks.chaos.judge import judge
from benchmarks.chaos.record import Outcome, add_outcome, of_fault, read_outcomes
from benchmarks.chaos.summary import table, write_summary
from benchmarks.chaos.trial import Trial
from benchmarks.chaos.workloads import WORKLOADS
from training.errors import EXIT_TERMINATED

_SOAK = 50


def main(argv: Sequence[str] | None = None) -> int:
    """Run the matrix; returns 0 if no trial violated an invariant."""
    options = _arguments(argv)
    faults = all_faults()
    if options.list:
        for fault in faults:
            print(f"{fault.id:8}{fault.what}{_but(fault)}")
        return 0
    chosen = _chosen(faults, options.faults)
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    record, page = options.out / "chaos.jsonl", options.out / "chaos.md"
    folder = Path(tempfile.mkdtemp(prefix="evx", dir=options.work))
    try:
        with bench(folder) as chaos_bench:
            for fault, trainer in itertools.product(chosen, options.trainer or WORKLOADS):
                trials = options.trials or (_SOAK if fault.id == "random" else 3)
                _run_fault(chaos_bench, fault, trainer, trials, seed, record, options.keep)
                write_summary(page, faults, read_outcomes(record, seed), seed)
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)
    write_summary(page, faults, outcomes := read_outcomes(record, seed), seed)
    print("\n".join(table(faults, outcomes)))
    bad = [outcome for outcome in outcomes if outcome.broken]
    print(f"{len(outcomes)} trials, {len(bad)} broke something; {page}")
    return 1 if bad else 0


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.chaos", description="Run the fault matrix.")
    parser.add_argument("--faults", default="", help="such as F1,F2,random; default: all")
    parser.add_argument(
        "--trainer",
        choices=list(WORKLOADS),
        nargs="*",
        help="trainers or strategies (torch-fsdp, ...) whose trainings are hit; default: all installed",
    )
    parser.add_argument(
        "--trials", type=int, help=f"trials of a fault with a trainer (default: 3, of random {_SOAK})"
    )
    parser.add_argument(
        "--seed", type=int, help="of all draws; with an old one, the trials that are left are run"
    )
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parents[1], help="folder of chaos.md, chaos.jsonl"
    )
    parser.add_argument("--work", default="/tmp", help="folder for homes and logs; a short path")
    parser.add_argument(
        "--keep", action="store_true", help="keep homes and logs of trials that broke something"
    )
    parser.add_argument("--list", action="store_true", help="list the faults")
    return parser.parse_args(argv)


def _chosen(faults: Sequence[Fault], names: str) -> list[Fault]:
    wanted = {name.strip() for name in names.split(",") if name.strip()}
    if unknown := wanted - {fault.id for fault in faults}:
        raise SystemExit(f"no such faults: {', '.join(sorted(unknown))}; see --list")
    return [fault for fault in faults if (not wanted or fault.id in wanted) and not fault.unavailable()]


def _but(fault: Fault) -> str:
    reason = fault.unavailable()
    return f" (not here: {reason})" if reason else ""


def _run_fault(
    chaos_bench: Bench, fault: Fault, trainer: str, trials: int, seed: int, record: Path, keep: bool
) -> None:
    if trainer in fault.not_with:
        print(f"{fault.id} {trainer}: not tried. {fault.not_with[trainer]}", flush=True)
        return
    if library := WORKLOADS[trainer].missing_library:
        print(f"{fault.id} {trainer}: not tried. {library} is not installed here", flush=True)
        return
    done = {past_outcome.trial for past_outcome in of_fault(read_outcomes(record, seed), fault.id, trainer)}
    for number in range(1, trials + 1):
        if number in done:
            continue
        outcome = run_trial(chaos_bench, fault, number, seed, trainer, keep)
        add_outcome(record, outcome)
        print(_line(outcome), flush=True)


def run_trial(
    chaos_bench: Bench,
    fault: Fault,
    number: int,
    seed: int,
    trainer: str = "torch",
    keep: bool = False,
) -> Outcome:
    """Run one trial and return its outcome; removes its files, except with `keep` after a violated invariant."""
    kinds = fault.kinds_of(trainer)
    kind = kinds[(number - 1) % len(kinds)]
    trial = Trial.prepare(chaos_bench, fault.id, number, seed, kind, fault.own_services)
    outcome = None
    try:
        fault.inject(trial)
        trial.finish()
        outcome = judge(trial)
        return outcome
    finally:
        if outcome is not None and outcome.broken and keep:
            with suppress(OSError):
                shutil.copytree(trial.home.root, trial.home.root.with_suffix(".kept"), symlinks=True)
            for log in trial.logs():
                shutil.copy(log, log.with_suffix(".kept.log"))
        trial.clean()


def _line(outcome: Outcome) -> str:
    """One line of text for a trial."""
    verdict = (
        "BROKEN " + ", ".join(f"{b.invariant} {b.name}" for b in outcome.broken) if outcome.broken else "ok"
    )
    weights = {True: "same weights", False: "OTHER WEIGHTS", None: "weights not compared"}
    took = "" if outcome.recovery_s is None else f", recovered in {outcome.recovery_s:.0f} s"
    exits = ",".join(map(str, outcome.statuses))
    return (
        f"{outcome.fault} {outcome.trainer} {outcome.trial}: {outcome.moment}; exit {exits}; "
        f"{weights[outcome.weights_identical]}, {outcome.steps_repeated} steps again{took}, "
        f"{outcome.seconds:.0f} s: {verdict}"
    )


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))  # so that cleanup runs
    sys.exit(main())
