"""CIFAR-10 for the GPU rows, from the archive in EVERGREEN_TEST_DATA; a few rows of it for a trial without a GPU."""

import os
from pathlib import Path
from typing import Any

from benchmarks.harness.row import Size, Workspace
from training.attempts.job import TrainingJob
from training.data import dataset
from training.data.preparation.prepare import make_version, plan_shards, write_raw
from training.data.sources.locate import open_path
from training.recipe import load
from training.records import DatasetVersion
from training.settings.schema import DataSettings
from training.storage.paths import Home

ARCHIVE = "cifar10-jpeg.tar.xz"


def unavailable(size: Size) -> str:
    """Reason why the GPU rows can't run here, or ""; they run anywhere if the size is `tiny`."""
    import torch

    if "EVERGREEN_TEST_DATA" not in os.environ:
        return f"EVERGREEN_TEST_DATA, a folder with {ARCHIVE}, is not set"
    if size != "tiny" and not torch.cuda.is_available():
        return "there is no GPU here"
    return ""


def version_of(workspace: Workspace) -> DatasetVersion:
    """The dataset version; the first call prepares it."""
    home = Home(workspace.data / "cifar")
    few = {"max_train_rows": 200, "max_test_rows": 50} if workspace.size == "tiny" else {}
    settings = DataSettings.model_validate(few)
    source = load("cifar10-vit")[0].source
    archive = Path(os.environ["EVERGREEN_TEST_DATA"]) / ARCHIVE
    files = open_path(archive, home.sources, (), source).fetch(home.sources / "cifar")
    fingerprint = dataset.fingerprint(files, settings)
    if (version := dataset.find(home, "cifar", fingerprint)) is not None:
        return version
    folder = home.raw_rows("cifar", fingerprint)
    raw = [write_raw(files, shard, settings, folder) for shard in plan_shards(files, settings)]
    target = home.dataset("cifar", fingerprint)
    return make_version("cifar", fingerprint, files, raw, settings, target, with_ray=False)


def job_on_gpu(workspace: Workspace, recipe: str, training: dict[str, Any]) -> TrainingJob:
    """A training in one process on the GPU, or on the CPU if the size is `tiny`."""
    from benchmarks.baselines.trainings import job_of

    tiny = workspace.size == "tiny"
    settings = {
        "training": {"global_batch_size": 64 if tiny else 512, "augment": False} | training,
        "scaling": {"num_workers": 0, "use_gpu": "no" if tiny else "yes"},
        "checkpoint": {"every_s": 3600},
    }
    file = Path(load(recipe)[1].path)
    return job_of(workspace.own / "home", version_of(workspace), str(file), settings)
