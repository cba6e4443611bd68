"""P14, runs: opening a retraining's MLflow run takes as long with a thousand runs in the store as with ten."""

import shutil
import time
from pathlib import Path
from statistics import median

from benchmarks.harness.row import Claim, Outcome, Row, Workspace

_FEW = 10
_TRIES = 15


def prepare(workspace: Workspace) -> None:
    """Make a home with few finished runs, and a home with many."""
    from benchmarks.baselines.plans import numbered, plan_of_digits
    from tasks.trackers.mlflow_run import HOME_TAG, RUN_KEY_TAG, close_run, connect_once, open_run
    from training.storage.paths import Home

    for name, count in (("few", _FEW), ("many", workspace.pick(1000, 200, 30))):
        home = Home(workspace.shared / name)
        plan = plan_of_digits(home)
        client = connect_once(plan)
        experiment = client.get_run(open_run(client, plan)).info.experiment_id
        for number in range(1, count):
            tags = {
                RUN_KEY_TAG: numbered(plan, number).run_key,
                "evergreen.recipe": plan.recipe.name,
                HOME_TAG: home.identity,
            }
            close_run(client, client.create_run(experiment, tags=tags).info.run_id, "FINISHED")


def many(workspace: Workspace) -> Outcome:
    """A: in a store with many runs."""
    return _opened(workspace, "many")


def few(workspace: Workspace) -> Outcome:
    """B: in a store with few runs."""
    return _opened(workspace, "few")


def _opened(workspace: Workspace, name: str) -> Outcome:
    """Median time to open a new run; each run is closed again."""
    from benchmarks.baselines.plans import numbered, plan_of_digits
    from tasks.trackers.mlflow_run import close_run, connect_once, open_run
    from training.storage.paths import Home

    root = Path(shutil.copytree(workspace.shared / name, workspace.own / "home"))
    plan = plan_of_digits(Home(root))
    client = connect_once(plan)
    taken = []
    for number in range(_TRIES):
        began = time.perf_counter()
        run_id = open_run(client, numbered(plan, 10**6 + number))
        taken.append(time.perf_counter() - began)
        close_run(client, run_id, "FINISHED")
    return Outcome({"ms": 1000 * median(taken[1:])}, {"opened": len(taken)})


ROW = Row(
    id="P14-runs",
    sides={"a": many, "b": few},
    claims=(
        Claim(
            "P14-runs",
            "opening a run in a store of 1,000 runs / of 10",
            of="ms",
            unit="ms",
            goal=1.1,  # flat, with room for noise: the limit of row P14-again
            at_least=False,
        ),
    ),
    prepare=prepare,
    pairs=10,  # of some milliseconds each, which other load on the machine can double
    same=("opened",),
    others=(),
)
