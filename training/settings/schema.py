"""The settings tree with its defaults. A recipe overrides defaults; the run form or `--set` overrides the recipe.

Before any work starts, :mod:`training.settings.overrides` refuses unknown keys, invalid values and contradictions.
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, Self, Union, cast

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    PositiveInt,
    Tag,
    model_validator,
)

from training.redaction import SecretUrl
from training.seams import STORES, TRACKERS, TRAINERS, formats_of, part_named
from training.seams import TrainerName as TrainerName
from training.settings.change_limits import check_limits
from training.settings.sections import NonNegativeFloat, PositiveFloat, Share, TrainerSettings, listed, once
from training.settings.sections import Section as Section

_LONGEST_NAME = 240  # bytes of a model's name: files are named after it, and file systems allow 255


def _named(rule: str, spelled: str) -> AfterValidator:
    """Validator of a name that MLflow accepts, and that is safe in MLflow's searches and as a folder's name."""

    def check(name: str) -> str:
        if not re.fullmatch(rule, name):
            raise ValueError(
                f"a name has {spelled}, at most 200 characters, and begins with a letter, a digit or _"
            )
        return name

    return AfterValidator(check)


def _fits_a_file(name: str) -> str:
    if (length := len(name.encode())) > _LONGEST_NAME:
        raise ValueError(
            f"the name has {length} bytes in UTF-8, more than {_LONGEST_NAME}; choose a shorter name"
        )
    return name


def _not_empty(text: str) -> str:
    if not text.strip():
        raise ValueError(
            "the text is empty, perhaps from a variable that is not set; leave the setting out for its default"
        )
    return text


def _as_text(path: object) -> object:
    return os.fspath(path) if isinstance(path, os.PathLike) else path


PathText = Annotated[str, BeforeValidator(_as_text), AfterValidator(_not_empty)]
"""The path of a file or folder as text; a `Path` is converted."""
ModelName = Annotated[
    str, _named(r"\w[\w .-]{0,199}", "letters, digits, spaces and `_.-`"), AfterValidator(_fits_a_file)
]
ExperimentName = Annotated[str, _named(r"/?\w[\w ./@-]{0,199}", "letters, digits, spaces and `_./@-`")]


if TYPE_CHECKING:
    AlsoTracked = str
else:
    AlsoTracked = Literal[tuple(TRACKERS)]


class DataSettings(Section):
    """The data: which rows a model is trained and tested on, and how rows reach the model."""

    path: PathText | None = Field(
        None,
        description="Files to read instead of the recipe's source: for images a folder or archive (.tar, .tar.gz, "
        ".tar.xz, .zip) of class folders, torchvision's raw files, CIFAR-10's binary files, or Parquet; for a table or "
        "text, files of the recipe's kind",
    )
    image_size: PositiveInt | None = Field(
        None, description="Height and width in pixels; larger or smaller images are resized"
    )
    channels: Literal[1, 3] | None = Field(
        None, description="Convert images to grey (1) or RGB (3); none: as they are"
    )
    max_train_rows: PositiveInt | None = Field(
        None,
        description="Use a fixed random subset of about so many training rows (exact for a source with a train split)",
    )
    max_test_rows: PositiveInt | None = Field(
        None,
        description="Use a fixed random subset of about so many test rows (exact for a source with a test split)",
    )
    test_share: Share = Field(
        0.2, description="Share of rows kept for the test, for sources without a test split"
    )
    validation_share: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.1, description="Share of the training rows kept back to validate each epoch"
    )
    validation_split: Literal["use", "ignore"] = Field(
        "use",
        description="A source's own validation rows (val/ beside train/ and test/): use them to validate each epoch, "
        "in place of validation_share, or ignore them",
    )
    max_dropped_share: Share = Field(
        0.0, description="Share of bad rows that may be left out; 0 refuses the first one"
    )
    duplicates: Literal["refuse", "drop"] = Field(
        "refuse",
        description="Images in both the train and the test split, or under two labels: refuse the data, or drop the "
        "test copies and all rows with conflicting labels",
    )
    changes: Literal["hold", "tell", "ignore"] = Field(
        "hold",
        description="Data that changed since the champion's as only a mistake does: hold the run until `evergreen "
        "accept`, tell what changed and go on, or ignore",
    )
    change_limits: Annotated[tuple[str, ...], BeforeValidator(listed), AfterValidator(check_limits)] = Field(
        (),
        description="Limits of that comparison, as rows=0.3 or, of one column, weight.scale=100; inf: no limit "
        "(docs/data-changes.md)",
    )
    ignore_changes: Annotated[tuple[str, ...], BeforeValidator(listed), AfterValidator(once)] = Field(
        (), description="Columns whose changes say nothing, as account,balance"
    )
    max_tokens: Annotated[int, Field(ge=4)] = Field(
        64, description="Tokens of each row of text; longer rows are cut, shorter ones padded"
    )
    vocabulary: Annotated[int, Field(ge=300)] = Field(
        8000, description="Most tokens of a tokenizer that is trained on the train split"
    )
    feed: Literal["memory", "stream", "loader"] = Field(
        "memory",
        description="How rows reach the model: memory (memory-mapped columns, exact), stream (Ray Data: images batch "
        "by batch, in order, where random access is slow; tables at once, for boosted trees), loader (torch "
        "DataLoader, exact)",
    )
    loader_processes: Annotated[int, Field(ge=0)] = Field(
        0, description="Processes of each worker's DataLoader, for feed loader"
    )
    loader_prefetch: PositiveInt = Field(
        2, description="Batches that each process of loader_processes reads ahead"
    )


class ScalingSettings(Section):
    """Number of training processes, their CPUs and GPUs, and their communication."""

    num_workers: Annotated[int, Field(ge=0)] = Field(
        2, description="Number of training processes; 0 trains in this process, without Ray"
    )
    min_workers: PositiveInt | None = Field(
        None,
        description="Continue with as few workers when nodes are lost, up to num_workers when they are back; none: "
        "always num_workers",
    )
    cpus_per_worker: PositiveFloat | None = Field(
        None, description="CPUs reserved for each worker; none: as many as fit, at most 1"
    )
    threads_per_worker: PositiveInt = Field(1, description="Threads of torch in each worker")
    use_gpu: Literal["auto", "yes", "no"] = Field(
        "auto", description="Train on GPUs; auto when every worker can have one"
    )
    gpus_per_worker: PositiveFloat = Field(
        1.0, description="GPUs for each worker when GPUs are used; may be a fraction"
    )
    accelerator_type: str | None = Field(
        None, description="Ray's name of the accelerator to train on, such as A100"
    )
    placement_strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = Field(
        "PACK", description="How Ray places workers on nodes"
    )
    backend: Literal["auto", "gloo", "nccl"] = Field(
        "auto", description="Communication between workers; auto: nccl on GPUs"
    )
    network_interface: str | None = Field(
        None, description="Network interface for the communication, such as eth0"
    )


class CheckpointSettings(Section):
    """When checkpoints are saved and how many are kept. No setting of this section changes the weights."""

    every_s: PositiveFloat = Field(30.0, description="Seconds between checkpoints inside an epoch")
    every_steps: PositiveInt | None = Field(
        None, description="Steps between checkpoints inside an epoch, besides every_s"
    )
    keep_newest: Annotated[int, Field(ge=2)] = Field(2, description="Newest checkpoints kept")
    keep_best: PositiveInt = Field(1, description="Best checkpoints kept, by validation loss")
    replay: bool = Field(
        True,
        description="Once a run, replay a few steps from the first checkpoint with a new model and compare all bits: "
        "finds what an interruption would change",
    )


def _cost_triples(given: object) -> object:
    """(true class, answer, cost) of each pair, from a mapping of true classes to mappings of answers to costs."""
    if not isinstance(given, Mapping):
        return given
    return tuple((true, answer, cost) for true, row in given.items() for answer, cost in row.items())


class GateSettings(Section):
    """Rules by which a candidate model replaces the champion."""

    floor: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0,
        description="Accuracy (R² for a regression, 1 / perplexity for a language model, 1 - noise error for a "
        "diffusion model) that every candidate must reach; with another `metric`, a value of it or, of a loss, the "
        "share of it that the model removes of that of always the same answer",
    )
    metric: Literal[
        "auto",
        "accuracy",
        "balanced_accuracy",
        "log_loss",
        "brier",
        "cost",
        "auc",
        "f1",
        "squared",
        "absolute",
        "pinball",
    ] = Field(
        "auto",
        description="What the gate compares. auto: accuracy, or auc (two classes) or balanced_accuracy if a class has "
        "less than a tenth of the rows; squared errors of a regression. A champion keeps its metric",
    )
    positive: str | None = Field(
        None, description="Class that metric f1 is about; none: the rarer one of two classes"
    )
    quantile: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.5, description="Quantile that metric pinball is about"
    )
    costs: Annotated[tuple[tuple[str, str, NonNegativeFloat], ...], BeforeValidator(_cost_triples)] = Field(
        (),
        description="Costs of metric cost: [true class, answer, cost] for each pair, or {'yes': {'no': 5}} in a "
        "recipe; others: 0 for the right class, 1 for a wrong one",
    )
    baseline: bool = Field(
        True,
        description="A first champion must be shown to be better than a model that has learned nothing, such as one "
        "that always answers the commonest class",
    )
    policy: Literal["better", "not_worse", "unless_worse"] = Field(
        "better",
        description="better: better than the champion by the metric; not_worse: at most `margin` worse than the best "
        "champion so far (for a regression: by mean squared error; for a language model: by loss per token; for a "
        "diffusion model: by noise error); unless_worse: not shown to be worse than the best champion so far",
    )
    margin: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.005,
        description="Accuracy that policy not_worse may give away; for a regression, the share by which the mean "
        "squared error may grow, for a language model the loss per token, for a diffusion model the noise error",
    )
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = Field(
        0.95, description="Confidence of all comparisons with one champion together, and of each interval"
    )
    error_control: Literal["joint", "strict"] = Field(
        "joint",
        description="How 1 - confidence is shared out among the comparisons with one champion: joint (their "
        "dependence is measured; more power) or strict (an equal share each; holds whatever the dependence)",
    )
    horizon: PositiveInt = Field(
        365,
        description="Comparisons with one champion to plan for; strict allows no more of them",
    )
    max_class_drop: Annotated[float, Field(ge=0, le=1)] = Field(
        0.05, description="Recall that any one class may lose"
    )


class FailureSettings(Section):
    """Failures of workers and Ray together that a run survives, and time limits that detect failures."""

    max_failures: Annotated[int, Field(ge=0)] = Field(
        3, description="Failures of the workers or of Ray that one start of the training survives"
    )
    worker_start_timeout_s: PositiveFloat = Field(
        120.0, description="Longest wait for the workers to start, and for each of their first two steps"
    )
    hang_timeout_s: PositiveFloat = Field(
        30.0,
        description="Workers that send no heartbeat for so long, and for 20 times a step's mean time, are stuck: "
        "their stacks go to the log, the attempt ends and training resumes from its newest checkpoint",
    )
    stop_timeout_s: PositiveFloat = Field(
        20.0,
        description="Longest wait for a last checkpoint, or its next bytes, after SIGTERM, Ctrl-C or a cancellation",
    )
    collective_timeout_s: PositiveFloat = Field(
        300.0,
        description="Longest wait of one worker for the others; for a checkpoint, dataset or model that one of several "
        "workers reads, writes or transfers, longest time in which no byte moves",
    )


class TrackingSettings(Section):
    """Where metrics and models are recorded, and how often."""

    uri: Annotated[SecretUrl, AfterValidator(_not_empty)] | None = Field(
        None, description="MLflow tracking URI; none: SQLite and files under EVERGREEN_HOME"
    )
    experiment: ExperimentName | None = Field(None, description="MLflow experiment; none: the recipe's name")
    model: ModelName | None = Field(None, description="Registered model; none: the recipe's name")
    log_every_steps: PositiveInt | None = Field(
        None, description="Steps between metric points; none: a tenth of an epoch, at most 50"
    )
    outage_s: NonNegativeFloat = Field(
        600.0, description="Longest wait for an MLflow server that is away; training itself does not wait"
    )
    model_format: str | None = Field(
        None,
        description="Format in which a model is registered; none: the first of those of the trainer. A version keeps "
        "its format",
    )
    system_metrics: bool = Field(True, description="Record CPU, memory and GPU use with the run")
    also: Annotated[tuple[AlsoTracked, ...], BeforeValidator(listed), AfterValidator(once)] = Field(
        (),
        description=f"Further trackers that get the metric points: {', '.join(TRACKERS)}",
    )


def _checked_url(url: str) -> str:
    from training.storage.objects.base import check_url

    return check_url(url)


class StorageSettings(Section):
    """Where datasets, checkpoints and trained models are stored for workers on other machines."""

    url: Annotated[str, AfterValidator(_checked_url)] | None = Field(
        None,
        description=f"URL with one of {', '.join(f'{scheme}://' for scheme in STORES)}, such as s3://bucket/folder; "
        "none: EVERGREEN_HOME, which all workers must share",
    )
    node_cache: str | None = Field(
        None, description="Folder on each node for datasets from storage.url; none: among the temporary files"
    )


class RaySettings(Section):
    """The Ray cluster that a run uses."""

    address: str | None = Field(
        None, description="host:port of a running cluster; none: one for this run on this machine"
    )
    num_cpus: PositiveInt | None = Field(
        None, description="CPUs of the local cluster; none: all of this machine's"
    )
    dashboard: bool = Field(
        False, description="Serve Ray's dashboard on this machine, at http://127.0.0.1:8265"
    )
    object_store_mb: PositiveInt | None = Field(
        None, description="Memory for Ray's objects, in MiB; none: Ray decides"
    )


def _trainer_of(training: object) -> str:
    """The trainer that a section `training` is for; the section of the PyTorch loop does not name its trainer."""
    trainer = training.get("trainer") if isinstance(training, Mapping) else getattr(training, "trainer", None)
    return str(trainer or "torch")


def section_of_trainer(name: TrainerName) -> type[TrainerSettings]:
    """The section `training` of the trainer with this name. Raises ValueError for an unknown name."""
    return cast(type[TrainerSettings], part_named(TRAINERS, name))


if TYPE_CHECKING:
    AnyTrainerSettings = TrainerSettings
else:
    AnyTrainerSettings = Annotated[
        Union[tuple(Annotated[section_of_trainer(name), Tag(name)] for name in TRAINERS)],  # noqa: UP007
        Discriminator(_trainer_of),
    ]


class Settings(Section):
    """All settings of a retraining run. The section `training` is that of the recipe's trainer."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(
        0, description="Seed of order, augmentation and initial weights"
    )
    data: DataSettings = Field(DataSettings(), description="Which rows a model learns from")
    training: AnyTrainerSettings = Field(
        section_of_trainer("torch")(), description="How the weights are trained"
    )
    scaling: ScalingSettings = Field(ScalingSettings(), description="On how many processes and devices")
    checkpoint: CheckpointSettings = Field(CheckpointSettings(), description="When training state is saved")
    gate: GateSettings = Field(GateSettings(), description="When a candidate replaces the champion")
    failure: FailureSettings = Field(FailureSettings(), description="How often a run may fail")
    storage: StorageSettings = Field(StorageSettings(), description="Where artifacts are stored")
    tracking: TrackingSettings = Field(
        TrackingSettings(), description="Where metrics and models are recorded"
    )
    ray: RaySettings = Field(RaySettings(), description="The Ray cluster to compute on")

    @property
    def trainer(self) -> TrainerName:
        """Name of the trainer that the section `training` is for."""
        return _trainer_of(self.training)

    def section_of(self, trainer: TrainerName) -> TrainerSettings:
        """The section `training` of `trainer`; only for a run of that trainer."""
        assert self.trainer == trainer
        return self.training

    def beside(self, folder: Path) -> Self:
        """The settings of a recipe in `folder`, with the relative paths of the trainer's section as absolute ones."""
        return self.model_copy(update={"training": self.training.beside(folder)})

    @property
    def epochs(self) -> int:
        """Epochs of the training."""
        return self.training.total_epochs

    @property
    def max_steps(self) -> int | None:
        """Limit of the number of steps, or None."""
        return self.training.step_limit

    @property
    def uses_float16(self) -> bool:
        """Whether the training computes in float16, which needs CUDA."""
        return self.training.uses_float16

    @model_validator(mode="after")
    def _no_contradictions(self) -> Self:
        self.training.check(self)
        _check_workers(self.scaling, self.data.feed)
        formats = formats_of(self.trainer, self.training.FORMATS)
        if self.tracking.model_format not in (None, *formats):
            raise ValueError(
                f"tracking.model_format: models of trainer {self.trainer} are registered as "
                f"{' or '.join(formats)}, not as {self.tracking.model_format}"
            )
        if self.scaling.num_workers == 0 and self.data.feed == "stream":
            raise ValueError("data.feed: stream needs Ray; use scaling.num_workers >= 1, or data.feed=memory")
        if self.scaling.use_gpu == "no" and self.scaling.backend == "nccl":
            raise ValueError(
                "scaling.backend: nccl needs GPUs; use scaling.backend=gloo, or scaling.use_gpu=auto"
            )
        if self.scaling.use_gpu == "no" and self.uses_float16:
            raise ValueError("training.precision: float16 needs CUDA; use bfloat16 or float32")
        return self


def _check_workers(scaling: ScalingSettings, feed: str) -> None:
    if scaling.min_workers is not None and feed == "stream":
        raise ValueError(
            "scaling.min_workers: data.feed=stream does not keep the global batch with fewer workers; use "
            "data.feed=memory"
        )
    if scaling.min_workers is not None and scaling.min_workers > scaling.num_workers:
        raise ValueError(
            f"scaling.min_workers: {scaling.min_workers} is more than scaling.num_workers ({scaling.num_workers})"
        )
