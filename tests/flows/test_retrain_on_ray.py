"""The flow with two Ray Train workers on one shared cluster: behaviour that needs real worker processes."""

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from slow_runs import send, when_at_step, write_slow_recipe
from small_runs import write_recipe

from flows.retrain import retrain
from tasks.trackers.mlflow_run import connect
from tasks.verify import verify
from training.attempts.heartbeat import read_beats
from training.attempts.history import read_attempts
from training.errors import TrainingError
from training.records import Release
from training.storage.paths import HOME_VARIABLE, Home, RunPaths
from training.storage.paths import home_to_write as home_of_environment

pytestmark = pytest.mark.usefixtures("prefect_harness", "ray_session")


def run(recipe: str = "digits", **sections: dict[str, Any]) -> Release:
    """A short retraining on two workers."""
    settings: dict[str, Any] = {
        "training": {"epochs": 2},
        "tracking": {"system_metrics": False},
        "gate": {"floor": 0.3},
        "ray": {"num_cpus": 2},
    }
    for name, section in sections.items():
        settings[name] = settings.get(name, {}) | section
    return retrain(recipe, settings)


def points(home: Home, release: Release, name: str) -> list[tuple[int, float]]:
    """(step, value) of all points of a metric in MLflow."""
    history = connect(None, home).get_metric_history(release.mlflow_run_id, name)
    return [(metric.step, metric.value) for metric in history]


def test_a_killed_worker_changes_nothing_but_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = write_slow_recipe(tmp_path)
    settings: dict[str, Any] = {
        "training": {"epochs": 10, "global_batch_size": 240, "virtual_shards": 2},
        "checkpoint": {"every_steps": 2},
        "tracking": {"log_every_steps": 2},
    }
    monkeypatch.setenv("EVERGREEN_HOME", str(tmp_path / "calm"))
    calm = run(recipe, scaling={"num_workers": 0}, **settings)
    monkeypatch.setenv("EVERGREEN_HOME", str(tmp_path / "hit"))
    hit_home = Home(tmp_path / "hit")
    paths = hit_home.run("slow", calm.run_key)
    killer = when_at_step(paths, 8, send(1, signal.SIGKILL))
    hit = run(recipe, **settings)
    killer.join()

    assert hit.run_key == calm.run_key
    assert hit.weights_digest == calm.weights_digest
    first, second = read_attempts(paths)
    assert (first.first_step, second.first_step > 0) == (0, True)
    assert "lost to failures" in hit.goodput.parts
    assert "lost to failures" not in calm.goodput.parts
    assert hit.version == "1"
    for name in ("train/loss", "validation/loss"):
        assert points(hit_home, hit, name) == points(Home(tmp_path / "calm"), calm, name)
    assert calm.goodput.total_s == pytest.approx(sum(calm.goodput.parts.values()))


@pytest.fixture
def odd_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home whose path has 200 bytes, among them special characters of URLs."""
    outer = tmp_path / "h?#% ü"
    folder = outer / ("x" * (199 - len(os.fsencode(outer))))
    monkeypatch.setenv(HOME_VARIABLE, str(folder))
    return home_of_environment()


@pytest.mark.slow
@pytest.mark.parametrize("feed", ["stream", "loader"])
def test_training_with_feeds_stream_and_loader(odd_home: Home, feed: str) -> None:
    """The home has an unusual path, and all files that the run writes are in that home."""
    home, processes = odd_home, 1 if feed == "loader" else 0
    release = run(data={"feed": feed, "loader_processes": processes}, training={"epochs": 2})
    assert release.metrics["accuracy"] > 0.5
    assert release.reproducible is True, release.reproducible_reason
    assert len(points(home, release, "validation/loss")) == 2
    assert Path(release.report).is_relative_to(home.root)
    assert list(home.mlflow_artifacts.rglob("model.pt2"))
    assert list(home.root.parent.iterdir()) == [home.root]


@pytest.mark.extended
def test_boosted_trees_take_their_rows_from_ray_data(home: Home) -> None:
    release = retrain(
        "breast-cancer",
        {"data": {"feed": "stream"}, "training": {"rounds": 20}, "tracking": {"system_metrics": False}},
    )
    assert (release.reproducible, release.metrics["accuracy"] > 0.9) == (True, True)
    findings = {finding.name: finding for finding in verify(home.run("breast-cancer", release.run_key), home)}
    assert [finding for finding in findings.values() if finding.ok is False] == []
    assert findings["rows of each epoch"].ok is True


@pytest.mark.extended
def test_an_error_of_the_recipe_is_not_retried(home: Home, tmp_path: Path) -> None:
    recipe = tmp_path / "wrong.py"
    recipe.write_text(
        "from training.recipe import Recipe\n"
        "from training.data.sources.digits import Digits\n"
        "def build_model(shape, classes):\n"
        "    from torch import nn\n"
        "    class Wrong(nn.Linear):\n"
        "        def forward(self, images):\n"
        "            if self.training:\n"
        "                raise IndexError('one too many')\n"
        "            return super().forward(images.flatten(1))\n"
        "    return Wrong(64, classes)\n"
        "recipe = Recipe(name='wrong', summary='fails in training', source=Digits(), build_model=build_model)\n"
    )
    with pytest.raises(TrainingError, match="IndexError: one too many"):
        run(str(recipe), scaling={"num_workers": 1})
    attempts = list((home.runs("wrong")).glob("*/ray/attempt-*"))
    assert len(attempts) == 1


@pytest.mark.slow
def test_a_model_that_can_not_be_exported_ends_its_training_and_leaves_no_worker(
    home: Home, tmp_path: Path
) -> None:
    model = (
        "type('Moody', (nn.Linear,), {'forward': lambda self, x: nn.Linear.forward(self, x.flatten(1)) "
        "* (1 if x.sum() > 0 else 2)})(64, classes)"
    )
    recipe = write_recipe(tmp_path, model, name="moody")
    with pytest.raises(TrainingError, match="recipe moody: its model can't be exported"):
        run(str(recipe), training={"epochs": 100_000}, scaling={"num_workers": 2})
    (folder,) = home.runs("moody").iterdir()
    paths = RunPaths(folder)
    assert not paths.release.exists()
    assert not paths.stop.exists()
    assert not connect(None, home).search_registered_models()
    # Ray ends the processes of finished workers a moment after the end of the training.
    workers = [psutil.Process(beat.pid) for beat in read_beats(paths) if psutil.pid_exists(beat.pid)]
    assert not psutil.wait_procs(workers, timeout=120)[1]
