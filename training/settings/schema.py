"""The settings tree with its defaults. A recipe overrides defaults; the run form or `--set` overrides the recipe.

Before any work starts, :mod:`training.settings.overrides` refuses unknown keys, invalid values and contradictions.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PositiveInt,
    Tag,
    model_validator,
)

from training.redaction import SecretUrl

Share = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]


def _named(rule: str, spelled: str) -> AfterValidator:
    """Validator of a name that MLflow accepts, and that is safe in MLflow's searches and as a folder's name."""

    def check(name: str) -> str:
        if not re.fullmatch(rule, name):
            raise ValueError(f"a name has {spelled}, at most 200, beginning with a letter or digit")
        return name

    return AfterValidator(check)


ModelName = Annotated[str, _named(r"\w[\w .-]{0,199}", "letters, digits, spaces and `_.-`")]
ExperimentName = Annotated[str, _named(r"/?\w[\w ./@-]{0,199}", "letters, digits, spaces and `_./@-`")]


AlsoTracked = Literal["tensorboard"]
TrainerName = Literal["torch", "xgboost"]


def _listed(value: object) -> object:
    """Split comma-separated names, as `--set` gives them, into a list; other values are returned unchanged."""
    return [name.strip() for name in value.split(",") if name.strip()] if isinstance(value, str) else value


class Section(BaseModel):
    """Base class of all sections: immutable; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class DataSettings(Section):
    """The data: which rows a model is trained and tested on, and how rows reach the model."""

    path: str | None = Field(
        None,
        description="Folder or archive (.tar, .tar.gz, .tar.xz, .zip) to read instead of downloading: class folders "
        "under train/ and test/, torchvision's raw files, or Parquet",
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
    feed: Literal["memory", "stream", "loader"] = Field(
        "memory",
        description="How rows reach the model: memory (memory-mapped columns, exact), stream (Ray Data, for heavy "
        "transforms; reads in order where random access is slow), loader (torch DataLoader)",
    )
    loader_processes: Annotated[int, Field(ge=0)] = Field(
        0, description="Processes of each worker's DataLoader, for feed loader"
    )


class TrainingSettings(Section):
    """The PyTorch loop: epochs, batch size, optimizer, schedule, precision and determinism."""

    epochs: PositiveInt = Field(5, description="Passes over the training rows")
    max_steps: PositiveInt | None = Field(None, description="End after this many optimizer steps, for trials")
    global_batch_size: PositiveInt = Field(128, description="Rows of one optimizer step, over all workers")
    accumulation_steps: PositiveInt = Field(
        1, description="Split each worker's share of a step into this many passes"
    )
    optimizer: Literal["adamw", "adam", "sgd"] = Field("adamw", description="Update rule")
    learning_rate: PositiveFloat = Field(1e-3, description="Peak learning rate")
    weight_decay: NonNegativeFloat = Field(
        1e-2, description="Decoupled weight decay (adamw) or L2 penalty (adam, sgd)"
    )
    momentum: Share = Field(0.9, description="Momentum of sgd")
    schedule: Literal["constant", "cosine", "one_cycle", "step"] = Field(
        "cosine", description="Learning rate over time"
    )
    warmup_share: Share = Field(
        0.05, description="Share of all steps over which the learning rate rises to its peak"
    )
    label_smoothing: Share = Field(0.0, description="Probability spread over the other classes in the loss")
    clip_norm: PositiveFloat | None = Field(None, description="Scale gradients down to this total norm")
    precision: Literal["float32", "bfloat16", "float16"] = Field(
        "float32",
        description="Arithmetic of the forward and backward pass; float16 uses loss scaling and needs CUDA",
    )
    augment: bool = Field(True, description="Apply the recipe's augmentation to training rows")
    select: Literal["best", "last"] = Field(
        "best", description="Epoch whose weights are kept, by validation loss"
    )
    deterministic: Literal["off", "warn", "refuse"] = Field(
        "warn", description="Use deterministic kernels; where one is missing, warn and continue, or refuse"
    )
    virtual_shards: PositiveInt | None = Field(
        None,
        description="Compute each step in this many fixed shards and add their gradients in a fixed order: the same "
        "weights to the last bit for any number of workers up to it. Slower; needs data.feed=memory",
    )
    compile: bool = Field(False, description="Compile the model with torch.compile")
    channels_last: bool = Field(False, description="Keep images channels-last in memory")


class XGBoostSettings(Section):
    """XGBoost: number, size and sampling of the trees. Named as in XGBoost's documentation, except `rounds`."""

    trainer: Literal["xgboost"] = Field("xgboost", description="The trainer that these settings are for")
    rounds: PositiveInt = Field(100, description="Boosting rounds; each adds a tree, or one a class")
    learning_rate: Annotated[float, Field(gt=0, le=1)] = Field(
        0.3, description="Share of each tree that is added"
    )
    max_depth: PositiveInt = Field(6, description="Greatest depth of a tree")
    min_child_weight: NonNegativeFloat = Field(1.0, description="Least sum of instance weights in a leaf")
    gamma: NonNegativeFloat = Field(0.0, description="Least reduction of the loss for which a leaf is split")
    subsample: Annotated[float, Field(gt=0, le=1)] = Field(1.0, description="Share of the rows for each tree")
    colsample_bytree: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="Share of the columns for each tree"
    )
    reg_lambda: NonNegativeFloat = Field(1.0, description="L2 penalty on the leaves' values")
    reg_alpha: NonNegativeFloat = Field(0.0, description="L1 penalty on the leaves' values")
    max_bin: Annotated[int, Field(ge=2)] = Field(256, description="Bins of a number column's histogram")
    select: Literal["best", "last"] = Field(
        "best", description="Number of rounds that are kept: the best by validation loss, or all"
    )


class ScalingSettings(Section):
    """Number of training processes, their CPUs and GPUs, and their communication."""

    num_workers: Annotated[int, Field(ge=0)] = Field(
        2, description="Training processes, one model replica each; 0 trains in this process, without Ray"
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


class GateSettings(Section):
    """Rules by which a candidate model replaces the champion."""

    floor: Annotated[float, Field(ge=0, le=1)] = Field(
        0.0, description="Accuracy (R² for a regression) that every candidate must reach"
    )
    policy: Literal["better", "not_worse"] = Field(
        "better",
        description="better: more accurate than the champion; not_worse: at most `margin` less accurate than the "
        "best champion so far (for a regression: by mean squared error)",
    )
    margin: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.005,
        description="Accuracy that policy not_worse may give away; for a regression, the share by which the mean "
        "squared error may grow",
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
        120.0, description="Longest wait for the workers to start, and for their first step"
    )
    hang_timeout_s: PositiveFloat = Field(
        30.0,
        description="Workers that send no heartbeat for so long, and for 20 times a step's mean time, are stuck: "
        "their stacks go to the log, the attempt ends and training resumes from its newest checkpoint",
    )
    stop_timeout_s: PositiveFloat = Field(
        20.0, description="Longest wait for a last checkpoint after SIGTERM, Ctrl-C or a cancellation"
    )
    collective_timeout_s: PositiveFloat = Field(
        300.0, description="Longest wait of one worker for the others"
    )


class TrackingSettings(Section):
    """Where metrics and models are recorded, and how often."""

    uri: SecretUrl | None = Field(
        None, description="MLflow tracking URI; none: SQLite and files under EVERGREEN_HOME"
    )
    experiment: ExperimentName | None = Field(None, description="MLflow experiment; none: the recipe's name")
    model: ModelName | None = Field(None, description="Registered model; none: the recipe's name")
    log_every_steps: PositiveInt | None = Field(
        None, description="Steps between metric points; none: 10 an epoch"
    )
    outage_s: NonNegativeFloat = Field(
        600.0, description="Longest wait for an MLflow server that is away; training itself does not wait"
    )
    system_metrics: bool = Field(True, description="Record CPU, memory and GPU use with the run")
    also: Annotated[tuple[AlsoTracked, ...], BeforeValidator(_listed)] = Field(
        (),
        description="Further trackers that get the metric points: tensorboard (event files in the run's folder)",
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
    found = training.get("trainer") if isinstance(training, Mapping) else getattr(training, "trainer", None)
    return str(found or "torch")


class Settings(Section):
    """All settings of a retraining run. The section `training` is that of the recipe's trainer."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(
        0, description="Seed of order, augmentation and initial weights"
    )
    data: DataSettings = Field(DataSettings(), description="Which rows a model learns from")
    training: Annotated[
        Annotated[TrainingSettings, Tag("torch")] | Annotated[XGBoostSettings, Tag("xgboost")],
        Discriminator(_trainer_of),
    ] = Field(TrainingSettings(), description="How the weights are trained")
    scaling: ScalingSettings = Field(ScalingSettings(), description="On how many processes and devices")
    checkpoint: CheckpointSettings = Field(CheckpointSettings(), description="When training state is saved")
    gate: GateSettings = Field(GateSettings(), description="When a candidate replaces the champion")
    failure: FailureSettings = Field(FailureSettings(), description="How often a run may fail")
    tracking: TrackingSettings = Field(
        TrackingSettings(), description="Where metrics and models are recorded"
    )
    ray: RaySettings = Field(RaySettings(), description="The Ray cluster to compute on")

    @property
    def trainer(self) -> TrainerName:
        """Name of the trainer that the section `training` is for."""
        return "xgboost" if isinstance(self.training, XGBoostSettings) else "torch"

    @property
    def torch(self) -> TrainingSettings:
        """The section `training` of the PyTorch loop; only for a run of that trainer."""
        assert isinstance(self.training, TrainingSettings)
        return self.training

    @property
    def xgboost(self) -> XGBoostSettings:
        """The section `training` of XGBoost; only for a run of that trainer."""
        assert isinstance(self.training, XGBoostSettings)
        return self.training

    @property
    def epochs(self) -> int:
        """Epochs of the training; a boosting round of XGBoost counts as an epoch."""
        return self.training.rounds if isinstance(self.training, XGBoostSettings) else self.training.epochs

    @property
    def max_steps(self) -> int | None:
        """Limit of the number of steps, or None."""
        return None if isinstance(self.training, XGBoostSettings) else self.training.max_steps

    @property
    def uses_float16(self) -> bool:
        """Whether the training computes in float16, which needs CUDA."""
        return isinstance(self.training, TrainingSettings) and self.training.precision == "float16"

    @model_validator(mode="after")
    def _no_contradictions(self) -> Self:
        _check_workers(self.scaling, self.data.feed)
        if isinstance(self.training, TrainingSettings):
            _check_loop(self, self.training)
        elif self.data.feed != "memory":
            raise ValueError("data.feed: trainer xgboost reads its rows from memory; use data.feed=memory")
        elif self.scaling.min_workers is not None:
            raise ValueError("scaling.min_workers: trainer xgboost needs a fixed number of workers")
        if self.scaling.num_workers == 0 and self.data.feed == "stream":
            raise ValueError("data.feed: stream needs Ray; use scaling.num_workers >= 1, or data.feed=memory")
        if self.scaling.use_gpu == "no" and self.scaling.backend == "nccl":
            raise ValueError(
                "scaling.backend: nccl needs GPUs; use scaling.backend=gloo, or scaling.use_gpu=auto"
            )
        if self.scaling.use_gpu == "no" and self.uses_float16:
            raise ValueError("training.precision: float16 needs CUDA; use bfloat16 or float32")
        return self


def _check_loop(settings: Settings, training: TrainingSettings) -> None:
    workers = max(1, settings.scaling.num_workers)
    _check_batch(training.global_batch_size, workers, training.accumulation_steps)
    if training.virtual_shards is not None:
        _check_shards(training.virtual_shards, settings, training)


def _check_workers(scaling: ScalingSettings, feed: str) -> None:
    if scaling.min_workers is not None and feed != "memory":
        raise ValueError(
            "scaling.min_workers: only data.feed=memory keeps the global batch with fewer workers"
        )
    if scaling.min_workers is not None and scaling.min_workers > scaling.num_workers:
        raise ValueError(
            f"scaling.min_workers: {scaling.min_workers} is more than scaling.num_workers ({scaling.num_workers})"
        )


def _check_shards(shards: int, settings: Settings, training: TrainingSettings) -> None:
    if settings.data.feed != "memory":
        raise ValueError(
            "training.virtual_shards: only data.feed=memory gives every number of workers the same rows"
        )
    if settings.scaling.num_workers > shards:
        raise ValueError(
            f"training.virtual_shards: {shards} shards leave some of {settings.scaling.num_workers} workers without "
            "any; use at least as many shards as scaling.num_workers"
        )
    if training.global_batch_size < 2 * shards:
        raise ValueError(
            f"training.virtual_shards: {shards} shards of a global batch of "
            f"{training.global_batch_size} have less than 2 rows; use fewer shards or a larger batch"
        )


def _check_batch(batch: int, workers: int, accumulation: int) -> None:
    unit = workers * accumulation
    if batch % unit:
        below, above = batch - batch % unit, batch - batch % unit + unit
        nearest = above if not below or above - batch < batch - below else below
        raise ValueError(
            f"training.global_batch_size: {batch} rows do not divide among {workers} workers x {accumulation} "
            f"accumulation steps; the nearest that does is {nearest}"
        )
