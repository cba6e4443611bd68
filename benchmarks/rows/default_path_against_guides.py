"""P1b: Evergreen with default settings and the guides' script, both on Ray Train: rows per second during training.

Both use the same images, model, batch and split into training and validation rows, and one thread each. Both update
with AdamW, Evergreen with the fused variant and the script, like the guides, with torch's default.
"""

from benchmarks.baselines.framework_pair import ACCURACY
from benchmarks.harness.row import Claim, Outcome, Row, Workspace
from training.attempts.job import TrainingJob

_TRAINING = {"epochs": 8, "global_batch_size": 128, "schedule": "constant", "warmup_share": 0.0}


def prepare(workspace: Workspace) -> None:
    """Prepare the dataset version."""
    _job(workspace)


def evergreen(workspace: Workspace) -> Outcome:
    """A: `evergreen retrain` with its default settings: two workers, checkpoints, publisher, MLflow and Prefect."""
    from benchmarks.baselines.images import idx_folder
    from benchmarks.baselines.retraining import retrain
    from benchmarks.baselines.trainings import recipe_file, steady_rows_per_s

    settings = {"data.path": str(idx_folder(workspace.data, _rows(workspace))), "scaling.use_gpu": "no"}
    settings |= {f"training.{name}": str(value) for name, value in _TRAINING.items()}
    run = retrain(workspace.own / "home", recipe_file("resnet"), settings)
    trained = run.trained()
    seen = sum(epoch.rows for epoch in trained.history[1:])
    return Outcome(
        {"rows_per_s": steady_rows_per_s(run.paths, trained)},
        {"rows": seen, "accuracy": trained.history[-1].validation_score},
    )


def guides(workspace: Workspace) -> Outcome:
    """B: the guides' script: `DataLoader`, and a report and a checkpoint in each epoch."""
    from benchmarks.baselines.guides_training import train_as_guides_do
    from benchmarks.baselines.images import idx_folder
    from training.data.dataset import open_columns
    from training.ray_cluster.cluster import ray_cluster
    from training.trainers.rows import training_rows

    job = _job(workspace)
    learn, validate = training_rows(open_columns(job.dataset, "train"), job.settings)
    raw = idx_folder(workspace.data, _rows(workspace))
    epochs = job.settings.epochs
    with ray_cluster(job.settings):
        done = train_as_guides_do(raw, learn.tolist(), validate.tolist(), workspace.own, epochs)
    seconds = done["ends"][-1] - done["ends"][0]
    return Outcome(
        {"rows_per_s": done["rows"] / seconds}, {name: done[name] for name in ("rows", "accuracy")}
    )


def _rows(workspace: Workspace) -> int:
    return workspace.pick(2560, 1280, 512)


def _job(workspace: Workspace) -> TrainingJob:
    from benchmarks.baselines.trainings import job_of, version_of

    settings = {"training": _TRAINING, "scaling": {"num_workers": 2}}
    return job_of(workspace.own / "home", version_of(workspace.data, _rows(workspace)), "resnet", settings)


ROW = Row(
    id="P1b",
    sides={"a": evergreen, "b": guides},
    claims=(
        Claim(
            "P1b",
            "default settings / the guides' script on Ray Train, ResNet-18, 2 workers",
            of="rows_per_s",
            unit="rows/s",
            goal=1.10,
            at_least=True,
            note="seven epochs are timed, and their seconds contain the replay check, which runs once; Evergreen's "
            "AdamW is fused, the script's is not, as in the guides",
        ),
    ),
    prepare=prepare,
    close={"rows": 0.01},
    scores={"accuracy": ACCURACY},
    warm_up=False,
)
