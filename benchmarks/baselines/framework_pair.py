"""A framework inside Evergreen and the guides' script with that framework on Ray Train (P17)."""

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

from benchmarks.harness.row import Claim, Outcome, Row, Score, Workspace

_EPOCHS, _BATCH = 3, 128
# Three epochs of 18 steps give accuracies that differ from run to run; chance is 0.1.
ACCURACY = Score(share=0.2, least=0.3)


def framework_row(
    framework: str, title: str, packages: tuple[str, ...] = (), optimizer: str = "", note: str = ""
) -> Row:
    """The row of a framework with a recipe `resnet_<framework>` and a script `guides_<framework>`.

    Both use the same images, model, batch, optimizer and split into training and validation rows, and one thread for an
    operation. `packages` are what must be installed, by default a package of the framework's name. `optimizer` names an
    optimizer other than the framework's usual one; `note` says what else a reader must know.
    """
    needed = packages or (framework,)
    name, extra = f"P17-{framework}", "tensorflow" if framework == "tensorflow" else "all"
    return Row(
        id=name,
        sides={"a": _evergreen(framework), "b": _guides(framework)},
        claims=(
            Claim(
                name,
                f"{title} in Evergreen / the guides' script with {title} on Ray Train, ResNet-18, "
                + (f"{optimizer}, 2 workers" if optimizer else "2 workers"),
                of="rows_per_s",
                unit="rows/s",
                goal=0.95,
                at_least=True,
                note="; ".join(filter(None, ("two epochs are timed, without the replay check", note))),
            ),
        ),
        prepare=_prepare,
        close={"rows": 0.01},
        scores={"accuracy": ACCURACY},
        packages=needed,
        warm_up=False,
        unavailable=lambda _: (
            "" if all(map(find_spec, needed)) else f"{title} is not installed: make setup EXTRAS={extra}"
        ),
    )


def _rows(workspace: Workspace) -> int:
    return workspace.pick(2560, 1280, 512)


def _prepare(workspace: Workspace) -> None:
    from benchmarks.baselines.trainings import version_of

    version_of(workspace.data, _rows(workspace))


def _evergreen(framework: str) -> Callable[[Workspace], Outcome]:
    """A: `evergreen retrain`: two workers, checkpoints, publisher, MLflow and Prefect."""

    def side(workspace: Workspace) -> Outcome:
        from benchmarks.baselines.images import idx_folder
        from benchmarks.baselines.retraining import retrain
        from benchmarks.baselines.trainings import recipe_file, steady_rows_per_s

        settings = {
            "data.path": str(idx_folder(workspace.data, _rows(workspace))),
            "scaling.use_gpu": "no",
            "scaling.num_workers": "2",
            "training.epochs": str(_EPOCHS),
            "training.global_batch_size": str(_BATCH),
            "checkpoint.replay": "false",  # runs once in a training: a large share of two epochs alone
        }
        run = retrain(workspace.own / "home", recipe_file(f"resnet_{framework}"), settings)
        trained = run.trained()
        seen = sum(epoch.rows for epoch in trained.history[1:])
        accuracy = trained.history[-1].validation_score
        return Outcome(
            {"rows_per_s": steady_rows_per_s(run.paths, trained)}, {"rows": seen, "accuracy": accuracy}
        )

    return side


def _guides(framework: str) -> Callable[[Workspace], Outcome]:
    """B: the guides' script: `DataLoader`, and a report and a checkpoint in each epoch."""

    def side(workspace: Workspace) -> Outcome:
        from benchmarks.baselines.guides_training import train_as_guides_do
        from benchmarks.baselines.images import idx_folder
        from benchmarks.baselines.trainings import job_of, version_of
        from training.data.dataset import open_columns
        from training.ray_cluster.cluster import ray_cluster
        from training.trainers.rows import training_rows

        job = job_of(workspace.own / "home", version_of(workspace.data, _rows(workspace)), "resnet", {})
        learn, validate = training_rows(open_columns(job.dataset, "train"), job.settings)
        raw = idx_folder(workspace.data, _rows(workspace))
        script = import_module(f"benchmarks.baselines.guides_{framework}")
        with ray_cluster(job.settings):
            done = train_as_guides_do(raw, learn.tolist(), validate.tolist(), workspace.own, _EPOCHS, script)
        seconds = done["ends"][-1] - done["ends"][0]
        return Outcome(
            {"rows_per_s": done["rows"] / seconds}, {each: done[each] for each in ("rows", "accuracy")}
        )

    return side
