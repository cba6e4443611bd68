"""Small trainings tracked by an MLflow server, the metric points that MLflow holds and those that it should hold."""

from collections import Counter
from pathlib import Path
from typing import Any

import small_runs

from tasks.registry.initial_weights import find_start, keep_initial_weights
from tasks.trackers.mlflow_run import connect
from tasks.train import keep_plan
from training.attempts.metrics import MetricsFile
from training.data.sources.digits import Digits
from training.plan import RunPlan, identify
from training.recipe import load
from training.records import DatasetVersion
from training.storage.paths import Home

FEW = {"max_train_rows": 300, "max_test_rows": 100}
_SLOW = (
    "nn.Sequential(type('Slow', (nn.Flatten,), {{'forward': lambda self, x: "
    "(self.training and __import__('time').sleep({step_s}), nn.Flatten.forward(self, x))[1]}})(), "
    "nn.Linear(shape[0] * shape[1] * shape[2], classes))"
)


def slow_recipe(folder: Path, step_s: float, name: str = "slow") -> str:
    """Write a recipe whose every training step takes at least `step_s` seconds; returns its path."""
    return small_runs.write_recipe(folder, _SLOW.format(step_s=step_s), name)


def planned(
    home: Home, recipe: str = "digits", uri: str | None = None, **sections: Any
) -> tuple[RunPlan, DatasetVersion]:
    """Plan a run that trains in this process on 300 digits, with a metric point every second step.

    Runs that share a server need different seeds: runs with the same run key would be the same run in MLflow.
    """
    _, ref = load(recipe)
    tracking = {"uri": uri, "log_every_steps": 2} | sections.pop("tracking", {})
    data = FEW | sections.pop("data", {})
    gate = {"floor": 0.0, "max_class_drop": 1.0} | sections.pop("gate", {})
    settings = small_runs.tiny_settings(data=data, tracking=tracking, gate=gate, **sections)
    files = Digits().fetch(home.sources / ref.name)
    plan = identify(home, ref, settings, files, start=find_start(home, ref.name, settings))
    keep_plan(plan)
    keep_initial_weights(plan)
    return plan, small_runs.prepared_from(home, files, ref.name, settings.data)


def written(plan: RunPlan) -> list[tuple[str, int, float, int]]:
    """The points that MLflow should hold, each once: (name, step, value, time in ms)."""
    return sorted(
        (name, point.step, value, int(point.at * 1000))
        for point in MetricsFile(plan.paths.metrics).read()
        for name, value in point.values.items()
    )


def recorded(uri: str | None, plan: RunPlan) -> list[tuple[str, int, float, int]]:
    """The points of the training that MLflow holds, with duplicates: (name, step, value, time in ms)."""
    client, run = the_run(uri, plan)
    ours = [name for name in run.data.metrics if "/" in name or name == "epoch"]
    return sorted(
        (name, point.step, point.value, point.timestamp)
        for name in ours
        if not name.startswith("system/")
        for point in client.get_metric_history(run.info.run_id, name)
    )


def difference(uri: str | None, plan: RunPlan) -> tuple[dict[Any, int], dict[Any, int]]:
    """Missing and surplus points in MLflow, with counts; both are empty if MLflow has every point exactly once."""
    there, due = Counter(recorded(uri, plan)), Counter(written(plan))
    assert set(due.values()) == {1}
    return dict(due - there), dict(there - due)


def the_run(uri: str | None, plan: RunPlan) -> tuple[Any, Any]:
    """MLflow's client, and the only run with the plan's run key."""
    client = connect(uri, Home(Path(plan.home)))
    experiment_ids = [experiment.experiment_id for experiment in client.search_experiments()]
    (run,) = client.search_runs(experiment_ids, f"tags.`evergreen.run_key` = '{plan.run_key}'")
    return client, run
