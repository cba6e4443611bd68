"""Ray's internals are used for tested versions only; without them a training ends with the same weights."""

import ast
import importlib.metadata
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from training.ray_cluster import patches

TESTS = Path(__file__).parents[2]
ROOT = TESTS.parent
_TRAIN = """
import json, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
import small_runs
from training.attempts.history import read_attempts
from training.ray_cluster.controller import ray_for
from training.storage.paths import Home
from training.supervision.launch import launch
from contextlib import nullcontext

home = Home(Path({home!r}))
version = small_runs.prepared(home)
settings = small_runs.tiny_settings(scaling={{"num_workers": 2}}, ray={{"num_cpus": 2}})
job = small_runs.job_for(home, version, settings, {recipe!r})
with ray_for(settings, nullcontext()):
    trained = launch(job)
print(json.dumps([trained.weights_digest, len(read_attempts(job.paths))]))
"""
# The second worker dies in its 10th step, once in the life of the file beside the home.
_DIES_ONCE = """
import os, signal
from pathlib import Path
from torch import nn
from evergreen import Digits, Recipe

class Dies(nn.Module):
    def __init__(self, size, classes):
        super().__init__()
        self.layer, self.steps = nn.Linear(size, classes), 0

    def forward(self, images):
        self.steps += self.training
        died = Path({died!r})
        if self.steps == 10 and os.environ.get("RANK") == "1" and not died.exists():
            died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return self.layer(images.flatten(1))

def build_model(shape, classes):
    return Dies(shape[0] * shape[1] * shape[2], classes)

recipe = Recipe("dies", "for a test", Digits(), build_model=build_model)
"""


@pytest.mark.parametrize(
    ("version", "chosen", "active"),
    [
        (patches.TESTED[0], "", True),
        ("2.99.0", "", False),
        ("2.99.0", "1", True),
        (patches.TESTED[0], "0", False),
    ],
)
def test_hooks_are_for_tested_versions(
    version: str, chosen: str, active: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.metadata, "version", {"ray": version}.__getitem__)
    monkeypatch.setenv(patches.VARIABLE, chosen)
    assert patches.active() is active


def test_only_one_file_imports_ray_s_internal_modules() -> None:
    files = {
        file.relative_to(TESTS.parent).as_posix()
        for package in ("evergreen", "flows", "tasks", "training")
        for file in (TESTS.parent / package).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.ImportFrom | ast.Import)
        for name in (node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name,)
        if name.split(".")[0] == "ray" and any(part.startswith("_") for part in name.split("."))
    }
    assert files == {"training/ray_cluster/patches.py"}


def test_hooks_are_used_with_the_locked_version_of_ray_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(patches.VARIABLE, raising=False)
    installed = importlib.metadata.version("ray")
    assert patches.active() == (installed in patches.TESTED)
    locked = re.search(r"^ray==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert locked is not None
    assert locked[1] in patches.TESTED


@pytest.mark.slow
def test_without_hooks_a_training_that_loses_a_worker_ends_with_the_same_weights(tmp_path: Path) -> None:
    recipe = tmp_path / "dies.py"
    died = tmp_path / "died"
    recipe.write_text(_DIES_ONCE.format(died=str(died)))
    outcomes = {}
    for hooks, dies in (("1", False), ("0", True)):
        died.unlink(missing_ok=True) if dies else died.touch()
        code = _TRAIN.format(tests=str(TESTS), home=str(tmp_path / f"home-{hooks}"), recipe=str(recipe))
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {patches.VARIABLE: hooks},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        outcomes[hooks] = json.loads(done.stdout.splitlines()[-1])
    assert outcomes == {"1": [outcomes["1"][0], 1], "0": [outcomes["1"][0], 2]}
