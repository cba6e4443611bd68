"""P14, versions: the registry queries of registration and gate take as long with 1,000 versions as with one."""

import shutil
import time
from pathlib import Path
from statistics import median

from benchmarks.harness.row import Claim, Outcome, Row, Workspace

_TRIES = 15


def prepare(workspace: Workspace) -> None:
    """Make a home with one version of the model, and a home with many; the last version is champion."""
    from benchmarks.baselines.plans import numbered, plan_of_digits
    from tasks.registry.aliases import CHAMPION, WEIGHTS_TAG
    from tasks.trackers.mlflow_run import RUN_KEY_TAG, connect_once
    from training.storage.paths import Home

    for name, count in (("one", 1), ("many", workspace.pick(1000, 200, 20))):
        plan = plan_of_digits(Home(workspace.shared / name))
        client = connect_once(plan)
        client.create_registered_model(plan.model)
        for number in range(count):
            tags = {RUN_KEY_TAG: numbered(plan, number).run_key, WEIGHTS_TAG: f"{number:064x}"}
            source = (workspace.shared / name / f"model-{number}").as_uri()
            version = client.create_model_version(plan.model, source, tags=tags).version
        client.set_registered_model_alias(plan.model, CHAMPION, version)


def many(workspace: Workspace) -> Outcome:
    """A: one version of many."""
    return _asked(workspace, "many", workspace.pick(1000, 200, 20))


def one(workspace: Workspace) -> Outcome:
    """B: the only version."""
    return _asked(workspace, "one", 1)


def _asked(workspace: Workspace, name: str, count: int) -> Outcome:
    """Median time to find a run's version and the champion."""
    from benchmarks.baselines.plans import numbered, plan_of_digits
    from tasks.registry.aliases import WEIGHTS_TAG, alias_of, champion_of, find_version
    from tasks.trackers.mlflow_run import RUN_KEY_TAG, connect_once
    from training.storage.paths import Home

    plan = plan_of_digits(Home(Path(shutil.copytree(workspace.shared / name, workspace.own / "home"))))
    client = connect_once(plan)
    mine = {RUN_KEY_TAG: numbered(plan, count - 1).run_key, WEIGHTS_TAG: f"{count - 1:064x}"}
    taken = []
    for _ in range(_TRIES):
        began = time.perf_counter()
        version = find_version(client, plan.model, mine)
        champion = champion_of(client, plan.model)
        alias = alias_of(client, plan.model, str(version))
        taken.append(time.perf_counter() - began)
    if not version == champion == str(count):
        raise RuntimeError(f"found version {version} and champion {champion}, where both are {count}")
    return Outcome({"ms": 1000 * median(taken[1:])}, {"alias": alias})


ROW = Row(
    id="P14-versions",
    sides={"a": many, "b": one},
    claims=(
        Claim(
            "P14-versions",
            "finding version and champion among 1,000 versions / of one",
            of="ms",
            unit="ms",
            goal=1.1,  # flat, with room for noise: the limit of row P14-again
            at_least=False,
        ),
    ),
    prepare=prepare,
    pairs=10,  # of some milliseconds each, which other load on the machine can double
    same=("alias",),
    others=(),
)
