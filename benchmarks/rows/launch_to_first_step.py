"""P7: from the command to the first optimizer step, with two processes and a model of one layer.

Cold is the first training of a process, including the start of Ray; warm is the next training on the same cluster.
For B, `torchrun` keeps nothing between calls: cold and warm are its first and its second call.
"""

import json
import subprocess
import sys
import time

from benchmarks.harness.row import Claim, Outcome, Row, Workspace
from training.attempts.job import TrainingJob


def prepare(workspace: Workspace) -> None:
    """Prepare the dataset version."""
    _job(workspace, 0)


def evergreen(workspace: Workspace) -> Outcome:
    """A: two launches in a new process."""
    from benchmarks.baselines.trainings import first_point

    jobs = [_job(workspace, seed) for seed in (0, 1)]
    files = [workspace.own / f"job-{seed}.json" for seed in (0, 1)]
    for job, file in zip(jobs, files, strict=True):
        file.write_text(job.model_dump_json())
    out = workspace.own / "calls.json"
    began = time.time()
    program = [sys.executable, "-m", "benchmarks.baselines.start", *map(str, files), str(out)]
    subprocess.run(program, check=True)
    firsts = [first_point(job.paths, 0, since=began) for job in jobs]
    assert all(firsts)
    cold, warm = (point.at for point in firsts if point is not None)
    return Outcome(
        {"cold_s": cold - began, "warm_s": warm - json.loads(out.read_text())[1]},
        {"steps": [_step_of(job) for job in jobs]},
    )


def _step_of(job: TrainingJob) -> list[int]:
    """Processes of a finished training, and rows of each of its steps."""
    from training.supervision.launch import finished

    trained = finished(job.paths, job.run_key)
    assert trained is not None
    return [trained.world_size, trained.history[-1].rows // trained.steps]


def torchrun(workspace: Workspace) -> Outcome:
    """B: two calls of `torchrun`."""
    from benchmarks.baselines.images import idx_folder
    from benchmarks.baselines.torchrun import run

    raw, taken, steps = idx_folder(workspace.data, _rows(workspace)), list[float](), list[list[int]]()
    for turn in range(2):
        out = workspace.own / f"first-{turn}.json"
        began = time.time()
        run("benchmarks.baselines.bare_start", [str(raw), str(out)])
        first = json.loads(out.read_text())
        taken.append(first["at"] - began)
        steps.append([first["processes"], first["rows"]])
    return Outcome({"cold_s": taken[0], "warm_s": taken[1]}, {"steps": steps})


def _rows(workspace: Workspace) -> int:
    return workspace.pick(2560, 1280, 512)


def _job(workspace: Workspace, seed: int) -> TrainingJob:
    from benchmarks.baselines.trainings import job_of, version_of

    settings = {
        "seed": seed,
        "training": {"epochs": 1, "max_steps": 3, "global_batch_size": 128},
        "scaling": {"num_workers": 2},
        "tracking": {"log_every_steps": 1},
    }
    return job_of(workspace.own / "home", version_of(workspace.data, _rows(workspace)), "linear", settings)


def _claim(name: str, goal: float) -> Claim:
    return Claim(
        f"P7-{name}",
        f"launch to first step, {name} / torchrun",
        of=f"{name}_s",
        unit="s",
        goal=goal,
        at_least=False,
    )


ROW = Row(
    id="P7",
    sides={"a": evergreen, "b": torchrun},
    claims=(_claim("cold", 3.0), _claim("warm", 1.5)),
    prepare=prepare,
    same=("steps",),
    warm_up=False,
)
