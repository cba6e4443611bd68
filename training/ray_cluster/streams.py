"""The Ray Datasets that a training with `data.feed=stream` reads its rows from, and how workers divide their rows."""

from typing import TYPE_CHECKING, Any

from training.attempts.job import TrainingJob
from training.data.dataset import is_validation
from training.data.versions import ray_dataset
from training.ray_cluster.stored_datasets import files_of
from training.records import DatasetVersion
from training.storage.objects.base import open_store

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyarrow.fs import FileSystem
    from ray.data import Dataset
    from ray.train import DataConfig


def streams(
    job: TrainingJob, version: DatasetVersion
) -> "tuple[dict[str, Dataset | Callable[[], Dataset]] | None, DataConfig | None]":
    """Ray Train's `datasets` and `dataset_config` for the feed `stream`; for other feeds, None.

    `version` is the job's dataset as it is stored: with `storage.url`, another home may have uploaded it.
    """
    if job.feed != "stream":
        return None, None
    url, share = job.settings.storage.url, job.settings.data.validation_share
    files = files_of(version, open_store(url)) if url is not None else None
    if not version.has_images:
        from training.trainers.boosting.ray_shards import consecutive_shards, ray_datasets

        return {**ray_datasets(version, share, files)}, consecutive_shards()
    from ray.data import ExecutionOptions
    from ray.train import DataConfig

    in_order = DataConfig(execution_options=ExecutionOptions(preserve_order=True))
    return {"train": _images(version, share, files)}, in_order


def _images(version: DatasetVersion, validation_share: float, files: "FileSystem | None") -> "Dataset":
    """The training images as a Ray Dataset that drops validation rows when read."""
    import numpy as np

    def learn_only(batch: Any) -> dict[str, Any]:
        marks = batch.pop("validation", None)
        keep = ~(is_validation(batch["digest"], validation_share) if marks is None else marks)
        kept: dict[str, Any] = {name: values[keep] for name, values in batch.items()}
        return kept | {"digest": batch["digest"][keep].view(np.int64)}  # torch supports few unsigned types

    return ray_dataset(version, "train", files).map_batches(learn_only)
