"""P5: source files -> validated, checksummed dataset version; B: as in the guides (P5a), or one NumPy pass (P5b)."""

import time
from typing import Any

from benchmarks.baselines.images import idx_folder, read
from benchmarks.harness.row import Claim, Outcome, Row, Workspace


def prepare(workspace: Workspace) -> None:
    """Write the idx files, and read them once to fill the page cache."""
    images = read(_raw(workspace), "train")
    assert images.pixels.sum() > 0


def evergreen(workspace: Workspace) -> Outcome:
    """A: download and preparation in `evergreen retrain` with its default settings; seconds from the run's summary.

    These are Prefect tasks, on the Ray cluster that the training uses afterwards; the start of Ray is not counted, as
    for B.
    """
    from benchmarks.baselines.retraining import retrain
    from benchmarks.baselines.trainings import recipe_file
    from training.data.manifest import read_manifest
    from training.storage.paths import Home

    settings = {"data.path": str(_raw(workspace)), "training.max_steps": "2", "scaling.use_gpu": "no"}
    run = retrain(workspace.own / "home", recipe_file("linear"), settings)
    release = run.recorded()
    parts = release.goodput.parts
    folder = Home(workspace.own / "home").dataset(release.recipe, release.dataset_fingerprint)
    version = read_manifest(folder, release.dataset_fingerprint)
    return Outcome({"seconds": parts["download"] + parts["preparation"]}, _facts(version))


def functions(workspace: Workspace) -> Outcome:
    """The same steps as plain functions in one process, without Prefect and Ray."""
    from benchmarks.baselines.trainings import prepare as prepare_dataset
    from training.settings.schema import Settings
    from training.storage.paths import Home

    settings = Settings.model_validate({"data": {"path": str(_raw(workspace))}})
    taken = []
    for turn in range(_turns(workspace)):
        began = time.perf_counter()
        version = prepare_dataset(Home(workspace.own / f"home-{turn}"), settings)
        taken.append(time.perf_counter() - began)
    return Outcome({"seconds": taken[1:]}, _facts(version))


def _facts(version: Any) -> dict[str, Any]:
    """Counts of labels, and mean and standard deviation of the pixels, of a dataset version."""
    labels = {name: list(version.label_counts[name]) for name in ("train", "test")}
    return {"labels": labels, "mean": version.mean[0], "std": version.std[0]}


def guides(workspace: Workspace) -> Outcome:
    """B: nested lists through pandas, and a map per row on Ray Data; the start of Ray is not counted."""
    import pandas  # noqa: F401
    import ray.data  # noqa: F401
    import torchvision  # noqa: F401

    from benchmarks.baselines.guides_preparation import prepare_as_guides_do
    from training.ray_cluster.cluster import ray_cluster
    from training.settings.schema import Settings

    with ray_cluster(Settings()):
        began = time.perf_counter()
        did = prepare_as_guides_do(_raw(workspace), workspace.own / "out")
        seconds = time.perf_counter() - began
    return Outcome({"seconds": seconds}, did)


def numpy_and_pyarrow(workspace: Workspace) -> Outcome:
    """B: one pass with NumPy and pyarrow."""
    from benchmarks.baselines.single_pass import single_pass

    taken = []
    for turn in range(_turns(workspace)):
        began = time.perf_counter()
        made = single_pass(_raw(workspace), workspace.own / f"out-{turn}")
        taken.append(time.perf_counter() - began)
    return Outcome({"seconds": taken[1:]}, {name: made[name] for name in ("labels", "mean", "std")})


def _turns(workspace: Workspace) -> int:
    """Number of passes of 0.1 to 0.4 s each, after one that imports modules; the guides' way takes half a minute."""
    return 1 + workspace.pick(8, 4, 1)


def _raw(workspace: Workspace) -> Any:
    return idx_folder(workspace.data, workspace.pick(20_000, 10_000, 1_000))


ROW = Row(
    id="P5",
    sides={"a": evergreen, "functions": functions, "guides": guides, "pass": numpy_and_pyarrow},
    claims=(
        Claim(
            "P5a",
            "preparation in evergreen retrain / pandas, nested lists, row map",
            of="seconds",
            unit="s",
            goal=1 / 20,
            at_least=False,
            b="guides",
        ),
        Claim(
            "P5b",
            "preparation in evergreen retrain / one pass with NumPy and pyarrow, warm, in one thread",
            of="seconds",
            unit="s",
            goal=1.25,
            at_least=False,
            b="pass",
        ),
        Claim(
            "P5-functions",
            "preparation as plain functions / one pass with NumPy and pyarrow, in one thread, both warm",
            of="seconds",
            unit="s",
            goal=None,
            at_least=False,
            a="functions",
            b="pass",
        ),
    ),
    prepare=prepare,
    same=("labels",),
    close={"mean": 1e-9, "std": 1e-9},
    optional=("mean", "std"),  # the guides normalise with constants
    others=("guides", "pass"),
    warm_up=False,
)
