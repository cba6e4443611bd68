"""The records and data of a run, read when a check first needs them. Nothing is written."""

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from tasks.verify.finding import NoEvidence
from tasks.verify.steps import Steps
from tasks.verify.store import Store, open_store
from training.attempts.history import Attempt, Failure, read_attempts, read_failures
from training.attempts.metrics import MetricsFile, Point
from training.code_closure import source_digest
from training.data import sample_order
from training.data.class_balance import balanced_order
from training.data.dataset import binary_to_numpy, is_validation
from training.data.manifest import read_manifest, read_parts
from training.data.sample_order import Rows, SampleOrder
from training.errors import DataError
from training.plan import RunPlan
from training.profile_records import DataCheck
from training.records import DatasetVersion, Record, Release, TrainedModel
from training.storage.paths import TRAINED, Home, RunPaths
from training.storage.record_files import DamagedError, find_record, read_record
from training.trainers import rows
from training.trainers.base import trainer_named
from training.trainers.early_stopping import last_epoch
from training.trainers.rows import order_of

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class Evidence:
    """One run's records, rows, metric points and MLflow entries. Raises :class:`NoEvidence` for missing data."""

    paths: RunPaths
    home: Home

    @cached_property
    def plan(self) -> RunPlan:
        """The run's plan."""
        return self._record(self.paths.ingredients, RunPlan, "the run has no ingredients.json")

    @cached_property
    def trained(self) -> TrainedModel:
        """The record of the finished training."""
        record = self._record(self.paths.model / TRAINED, TrainedModel, "training is not finished")
        file = trainer_named(self.plan.settings.trainer).MODEL_FILE  # the home may have moved since
        return record.model_copy(update={"weights": str(self.paths.model / file)})

    @cached_property
    def release(self) -> Release:
        """The record of the run's outcome."""
        return self._record(self.paths.release, Release, "the run is not finished")

    @property
    def is_finished(self) -> bool:
        """Whether the run recorded its outcome, which it does last."""
        return self.paths.release.is_file()

    @cached_property
    def data_check(self) -> DataCheck | None:
        """The comparison of the dataset with the champion's; None before it was compared."""
        return find_record(self.paths.data_check, DataCheck, self.paths.root.name)

    @property
    def is_trial(self) -> bool:
        """Whether the run is a trial of a search that was not retrained as an ordinary run: a trial has no release."""
        return bool(self.plan.search) and not self.is_finished

    @cached_property
    def dataset(self) -> DatasetVersion:
        """The dataset version as described by its manifest; the part files are not read."""
        folder = self.home.dataset(self.plan.recipe.name, self.plan.fingerprint)
        if not folder.is_dir():
            raise NoEvidence(f"the dataset is missing ({folder})")
        try:
            return read_manifest(folder, self.plan.fingerprint)
        except DataError as error:
            raise NoEvidence(f"the dataset is damaged: {error}") from error

    @cached_property
    def digests(self) -> npt.NDArray[np.uint64]:
        """First 8 bytes of each training row's digest, from the Parquet files."""
        try:
            tables = list(read_parts(self.dataset, "train", ["digest"]))
        except DataError as error:
            raise NoEvidence(f"the dataset is damaged: {error}") from error
        return np.concatenate([binary_to_numpy(table["digest"], np.uint64)[:, 0] for table in tables])

    @cached_property
    def learn(self) -> Rows:
        """Numbers of the training rows that are learned from, that is, all except the validation rows."""
        if self.dataset.validation_rows is None:
            return np.flatnonzero(~is_validation(self.digests, self.plan.settings.data.validation_share))
        tables = read_parts(self.dataset, "train", ["validation"])
        return np.flatnonzero(~np.concatenate([table["validation"].to_numpy() for table in tables]))

    @cached_property
    def order(self) -> SampleOrder:
        """The order in which the training uses the rows :attr:`learn`, by its settings."""
        settings, learn = self.plan.settings, self.learn
        batch = trainer_named(settings.trainer).rows_per_step(settings, len(learn))
        order = order_of(settings, len(learn), batch)
        if not settings.training.balances_classes:
            return order
        labels = [table["label"].to_numpy() for table in read_parts(self.dataset, "train", ["label"])]
        return balanced_order(np.concatenate(labels)[learn], self.dataset.classes, order)

    @cached_property
    def steps(self) -> Steps:
        """The optimizer steps and metric points that data and settings imply."""
        steps = Steps.of(self.plan.settings, len(self.learn), self.world_size, self._epochs())
        if not steps.total:
            raise NoEvidence("the rows give no whole batch, which training refuses")
        if self._has_earlier_steps(steps):
            raise NoEvidence("an earlier version of Evergreen divided the rows into other steps")
        return steps

    def _has_earlier_steps(self, steps: Steps) -> bool:
        """Whether the run is of an earlier version, whose last step of an epoch could have a row for each worker."""
        code = self.plan.ingredients.get(
            "code"
        )  # in runs of the first versions, a single digest of all modules
        if isinstance(code, dict) and all(
            code.get(module.__name__) == source_digest(Path(str(module.__file__)).read_text(encoding="utf-8"))
            for module in (sample_order, rows)
        ):
            return False
        return replace(self.order, number_of_parts=1).steps_per_epoch != steps.per_epoch

    def _epochs(self) -> int:
        """Epochs of the training: those of the settings, or fewer if its validation losses end it early."""
        settings = self.plan.settings
        if settings.training.patience is None:
            return settings.epochs
        try:
            losses = [row.validation_loss for row in self.trained.history]
        except NoEvidence:  # no model yet: the last point says whether training ended with its epoch
            newest = self.points[-1] if self.points else None
            ended = newest is not None and newest.step == newest.total_steps
            return newest.epoch if newest is not None and ended else settings.epochs
        return last_epoch(losses, settings.training.patience, settings.epochs)

    @property
    def world_size(self) -> int:
        """Number of workers of the newest attempt; without any attempt, the number in the settings."""
        wanted = max(1, self.plan.settings.scaling.num_workers)
        return self.attempts[-1].world_size if self.attempts else wanted

    @cached_property
    def attempts(self) -> list[Attempt]:
        """All attempts on record (starts of the training loop), oldest first."""
        return read_attempts(self.paths)

    @cached_property
    def failures(self) -> list[Failure]:
        """Attempts that failed, oldest first."""
        return read_failures(self.paths)

    @cached_property
    def points(self) -> list[Point]:
        """The metric points in the run's own file."""
        return MetricsFile(self.paths.metrics).lines().records  # I7 reports damage

    @cached_property
    def store(self) -> Store:
        """The run's entries in MLflow."""
        release = None
        with suppress(NoEvidence):
            release = self.release
        return open_store(self.plan, self.home, release)

    @cached_property
    def versions(self) -> "list[ModelVersion]":
        """Registered versions of the run: those that this home made, and the version that release.json names.

        Another home that shares the registry may have made a version with the same run key, whose weights may differ,
        for example those of a GPU: that version is checked in the other home.
        """
        named = None
        with suppress(NoEvidence):
            named = self.release.version
        return [
            version
            for version in self.store.versions
            if str(version.version) == named or self.store.is_ours(version)
        ]

    def _record(self, file: "Path", kind: type[R], absent: str) -> R:
        try:
            return read_record(file, kind, self.paths.root.name)
        except FileNotFoundError:
            raise NoEvidence(f"{absent}: no {file.name}") from None
        except DamagedError as error:
            raise NoEvidence(f"{file} can't be read ({error.what}), see I7") from error
