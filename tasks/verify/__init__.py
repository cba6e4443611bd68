"""Verification of a run: the invariants I1 to I10, each computed again from the bytes that the run left.

In: a run's folder. Out: a finding for each check. Nothing is changed. No recorded "ok" is trusted, except the result
of the training's own replay, which only a training can repeat.

I1   weights: bit for bit as recorded, and as those of an undisturbed run
I2   registry: one version, an alias that a recorded decision set, a model with the outputs of the weights
I3   metrics: each metric at each step exactly once, with the same values everywhere
I4   rows: each training row used exactly once an epoch
I5   attempts: no attempt repeats more steps than lie between two checkpoints
I6   recovery: within its time bound
I7   files: complete under their final names, and none half written
I8   machine: no process, lock, stop request or shared memory left
I9   states: no run is recorded as RUNNING after its process has ended
I10  consistency: all records agree, and an unfinished run is not recorded as finished
"""

from collections.abc import Callable
from functools import partial

from tasks.verify import (
    agreement,
    attempts,
    files,
    metrics,
    prefect_runs,
    registered,
    residue,
    rows,
    states,
    stored,
    weights,
)
from tasks.verify.evidence import Evidence
from tasks.verify.finding import Finding, NoEvidence, Outcome
from tasks.verify.runs import home_of
from training.errors import classify
from training.storage.paths import Home, RunPaths

__all__ = ["Finding", "verify"]

_Check = tuple[str, str, Callable[[Evidence], Outcome]]
_CHECKS: tuple[_Check, ...] = (
    ("I1", "weights as recorded", weights.recorded),
    ("I1", "weights of the selected checkpoint", weights.of_checkpoint),
    ("I1", "weights as registered", weights.tagged),
    ("I1", "weights after an interruption", weights.replayed),
    ("I2", "one version", registered.one_version),
    ("I2", "alias", registered.alias),
    ("I2", "registered model's answers", registered.same_answers),
    ("I3", "metrics file", metrics.in_file),
    ("I3", "metrics in MLflow", metrics.in_mlflow),
    ("I3", "MLflow's values", metrics.same_values),
    ("I3", "final numbers", metrics.final_numbers),
    ("I4", "rows of each epoch", rows.used_once),
    ("I5", "attempts on record", attempts.on_record),
    ("I5", "steps computed twice", attempts.computed_twice),
    ("I7", "records", files.records),
    ("I7", "checkpoints", files.checkpoints),
    ("I7", "dataset", files.dataset),
    ("I7", "unpacked columns", files.columns),
    ("I7", "recipe's copy", files.recipe),
    ("I7", "initial weights", files.initial_weights),
    ("I7", "objects in the store", stored.objects),
    ("I7", "dataset in the store", stored.dataset),
    ("I7", "nothing half done", files.nothing_half_done),
    ("I8", "processes", residue.processes),
    ("I8", "locks", residue.locks),
    ("I8", "request to stop", residue.stop_file),
    ("I8", "shared memory", residue.shared_memory),
    ("I9", "MLflow run", states.mlflow_run),
    ("I9", "other MLflow runs", states.others_running),
    ("I9", "Prefect, this home's server", prefect_runs.own_server),
    ("I9", "Prefect, configured server", prefect_runs.configured),
    ("I10", "finished", agreement.finished),
    ("I10", "run key", agreement.key_follows),
    ("I10", "records agree", agreement.records_agree),
    ("I10", "verdict in MLflow", agreement.verdict_recorded),
    ("I10", "verdict follows", agreement.verdict_follows),
    ("I10", "scores follow", agreement.scores_follow),
)


def verify(
    run: RunPaths, home: Home, against: RunPaths | None = None, recovery_bound_s: float | None = None
) -> tuple[Finding, ...]:
    """Check all invariants of `run`, a run of `home`.

    `against` is an undisturbed run, of this home or another, that must have the same weights and metrics if it had
    the same ingredients and was computed under the same conditions. `recovery_bound_s` is the longest allowed time
    from a failure until training is ready to resume.
    """
    checks: list[_Check] = [
        *_CHECKS,
        ("I6", "recovery", partial(attempts.recovered, bound_s=recovery_bound_s)),
    ]
    if against is not None:
        other = Evidence(against, home_of(against))
        checks.append(("I1", "weights of the other run", partial(weights.same_as, other=other)))
        checks.append(("I3", "metrics of the other run", partial(metrics.same_as, other=other)))
    checks.sort(key=lambda check: int(check[0][1:]))
    evidence = Evidence(run, home)
    return tuple(_found(evidence, *check) for check in checks)


def _found(run: Evidence, invariant: str, name: str, check: Callable[[Evidence], Outcome]) -> Finding:
    """Run one check. An exception becomes a finding, so that the other checks still run."""
    try:
        outcome = check(run)
    except NoEvidence as reason:
        outcome = Outcome(reason.ok, str(reason))
    except Exception as error:  # any error on damaged data reveals the damage
        known = classify(error)
        away = known is not None and known.transient
        outcome = Outcome(None if away else False, f"{type(error).__name__}: {error}")
    return Finding(invariant=invariant, name=name, ok=outcome.ok, detail=outcome.detail)
