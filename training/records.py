"""Records that steps pass to each other: small immutable JSON objects of paths, digests and numbers, never data."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BeforeValidator, Field, SerializeAsAny

from training.initial_weights import InitialWeights
from training.profile_records import DataCheck, Profile
from training.record_base import Record as Record
from training.redaction import Redacted
from training.seams import PROBLEMS, part_named
from training.seams import ProblemName as ProblemName
from training.table_records import ColumnKind as ColumnKind
from training.table_records import TableColumn as TableColumn
from training.table_records import TableSchema as TableSchema
from training.table_records import TextEncoding as TextEncoding

Split = Literal["train", "test"]
ImageShape = tuple[int, int, int]  # channels, height, width


class SourceFiles(Record):
    """Source files on this machine, complete and checked (the result of `download`)."""

    kind: str = Field(
        description="which reader understands them: digits, idx, cifar, folder, parquet, folder-targets, "
        "parquet-targets, table or text"
    )
    root: str = Field(description="folder that holds them")
    origin: Redacted = Field(description="where they came from, for people: a URL, a path or a package")
    digest: str = Field(description="sha256 over the content alone: no paths, names or times")
    files: int
    bytes: int
    classes: tuple[str, ...] = Field(
        (), description="class names in label order, where the source knows them"
    )
    target: str = Field("", description="of images with numbers to predict, the column of the numbers")
    tokenizer: str = Field(
        "",
        description="of text, path of the tokenizer that the recipe names; empty: trained on the train split",
    )


class RawShard(Record):
    """One shard of raw rows, as typed Parquet (the result of `parquet`)."""

    path: str
    rows: int
    bytes: int
    labels: dict[str, int] = Field(description="rows of each label")


class PartFile(Record):
    """One Parquet file of a dataset version; `path` is relative to the version's folder."""

    path: str
    rows: int
    bytes: int
    sha256: str


class DatasetVersion(Record):
    """An immutable, validated dataset (the result of `transform`); its `manifest.json` is this record.

    Images are uint8, channels first: `shape` is (channels, height, width). `mean` and `std` have one value per
    channel, by which pixel/255 is normalised: those of the train split, or 0.5 for a diffusion model, which gives -1 to
    1. `label_counts[split][k]` is the number of rows of class `classes[k]`.

    For a table, `table` describes the columns, `shape` is (number of feature columns,), and `mean` and `std` are empty.
    For text, `table` describes the column of text, and `shape` is (token ids of a row,).
    For a regression, `classes` and the counts are empty; `table` describes the target of images, too.
    """

    name: str = Field(description="name of the recipe that made the version")
    fingerprint: str = Field(description="sha256 over the source and its preparation")
    path: str = Field(description="folder of the part files")
    classes: tuple[str, ...] = Field(description="names of the classes, in the order of the labels")
    shape: tuple[int, ...] = Field(description="shape of a row's inputs")
    parts: dict[Split, tuple[PartFile, ...]] = Field(description="part files by split, each with its sha256")
    label_counts: dict[Split, tuple[int, ...]] = Field(description="rows of each class, by split")
    mean: tuple[float, ...] = Field(description="mean by which each channel is normalised")
    std: tuple[float, ...] = Field(description="standard deviation by which each channel is normalised")
    source_digest: str = Field(description="sha256 over the source's content")
    source_origin: Redacted = Field(description="where the source came from, without credentials")
    validation_rows: int | None = Field(
        None,
        description="rows of the train split that the source itself keeps for validation, marked in a column "
        "`validation` of the part files; none where data.validation_share chooses them",
    )
    dropped: tuple[str, ...] = Field(
        (), description="rows left out under data.max_dropped_share or data.duplicates, each with its reason"
    )
    problem: ProblemName = Field("classification", description="name of the problem")
    table: TableSchema | None = Field(
        None, description="columns of a table, or the target of images with numbers"
    )
    transform: str = Field("", description="digest of the recipe's function `transform_rows`; empty: none")
    profile: Profile | None = Field(
        None, description="what the rows look like; compared with later nights' datasets"
    )
    key: tuple[str, ...] = Field(
        (), description="columns of the rows' key; empty: a row's content identifies it"
    )
    format: int = Field(1, description="number of the manifest's format")

    @property
    def has_images(self) -> bool:
        """Whether the rows are images, and not rows of a table."""
        return len(self.shape) == 3  # channels, height, width

    @property
    def text(self) -> TextEncoding | None:
        """How text becomes token ids; None for images and for tables."""
        return None if self.table is None else self.table.text

    @property
    def image_shape(self) -> ImageShape:
        """(channels, height, width); only for a dataset of images."""
        channels, height, width = self.shape
        return channels, height, width

    def rows(self, split: Split) -> int:
        """Number of rows in `split`."""
        return sum(part.rows for part in self.parts[split])

    @property
    def bytes(self) -> int:
        """Size of all part files."""
        return sum(part.bytes for parts in self.parts.values() for part in parts)


class EpochMetrics(Record):
    """Metrics of one epoch over all ranks: `train_*` over training rows, `validation_*` over validation rows.

    The scores are of the problem's metric (:attr:`training.problems.base.Problem.metric`): accuracy, or RMSE in the
    unit of the target. One boosting round of XGBoost counts as an epoch.
    """

    epoch: int = Field(description="1 for the first")
    step: int = Field(description="optimizer steps done when the epoch ended")
    train_loss: float
    train_score: float = Field(validation_alias=AliasChoices("train_score", "train_accuracy"))
    validation_loss: float
    validation_score: float = Field(validation_alias=AliasChoices("validation_score", "validation_accuracy"))
    learning_rate: float
    images_per_s: float = Field(description="training rows per second, whatever the rows are")
    rows: int = Field(description="training rows that the epoch's steps used")
    checksum: int = Field(
        description="training.data.sample_order.checksum of those rows, over all ranks and attempts"
    )


class Goodput(Record):
    """Wall time of a run by part, in seconds; the parts add up to `total_s`."""

    total_s: float
    parts: dict[str, float] = Field(description="seconds by part, in order of occurrence")

    @property
    def useful_share(self) -> float:
        """Share of the wall time spent computing gradient steps."""
        return self.parts.get("compute", 0.0) / self.total_s if self.total_s else 0.0


class ReplayOutcome(Record):
    """Result of a replay of steps from a run's first checkpoint; stored as `replay.json` in the run's folder."""

    reproducible: bool | None = Field(description="None: not checked")
    reason: str = Field(description="what was found, what follows from it and what to do, for people")
    from_step: int | None = Field(None, description="step of the checkpoint")
    steps: int = Field(0, description="steps that were replayed")
    first_difference: int | None = Field(None, description="the first step after which something differed")
    differing: tuple[str, ...] = Field(
        (), description="what differed then: weights, optimizer state, loss, rows"
    )
    unsaved: tuple[str, ...] = Field((), description="state that differed and is in no checkpoint")
    tries: int = Field(1, description="replays that were begun")
    finished: bool = Field(True, description="False while the replay is under way, and after its worker died")


class TrainedModel(Record):
    """A finished training (the result of `train`): weights, their digest, and the history of the training."""

    run_key: str
    weights: str = Field(description="path of the safetensors file with the selected epoch's weights")
    weights_digest: str = Field(description="sha256 over names, dtypes, shapes and bytes of all tensors")
    selected_epoch: int
    steps: int
    world_size: int
    device: str
    history: tuple[EpochMetrics, ...]
    attempts: int = 1
    seconds: float
    goodput: Goodput = Field(description="of the training step alone; in trained.json, of its last attempt")
    reproducible: bool | None = Field(
        None, description="whether a replay gave the same bits; None: not checked"
    )
    reproducible_reason: str = Field("not checked: an older version of Evergreen trained it")
    stopped: str = Field("", description="why training ended before its last epoch; empty if it did not")
    threshold: float | None = Field(
        None,
        description="probability of the second of two classes from which it is the answer; none: the likelier class",
    )

    def selected(self) -> EpochMetrics:
        """Metrics of the epoch whose weights were kept."""
        return next(row for row in self.history if row.epoch == self.selected_epoch)


class Score(Record):
    """Scores of one model on the test rows; `low` to `high` is the interval of the problem's metric at `confidence`.

    Each problem has a record that adds its scores, :attr:`training.problems.base.Problem.score_record`.
    """

    problem: ProblemName
    low: float
    high: float
    confidence: float
    latency_ms: float = Field(description="median time to score one row, one row a batch")
    recipe_metrics: dict[str, float] = Field({}, description="finite values of the recipe's metrics by name")


def _read_score(given: Any) -> Any:
    """Scores read from JSON, as the record of their problem.

    Scores that an earlier version wrote do not name their problem; the name of its metric tells it.
    """
    if not isinstance(given, Mapping):
        return given
    kinds = {name: part_named(PROBLEMS, name) for name in PROBLEMS}
    name = given.get("problem") or next((name for name, kind in kinds.items() if kind.metric in given), "")
    if name not in kinds:
        raise ValueError(f"scores of an unknown problem {name!r}; known are {', '.join(kinds)}")
    return kinds[name].score_record.model_validate(given)


AnyScore = Annotated[SerializeAsAny[Score], BeforeValidator(_read_score)]


class LargestError(Record):
    """A test row whose target the candidate predicted badly."""

    row: int = Field(description="row number in the test split")
    truth: float
    predicted: float


class Mistake(Record):
    """A test row to which the candidate gave a wrong class with high probability."""

    row: int = Field(description="row number in the test split")
    truth: str
    predicted: str
    probability: float = Field(description="probability given to the wrong class")


class GateMetric(Record):
    """The metric by which the gate compares two models, unless it is that of the problem itself."""

    name: str = Field(description="as in gate.metric")
    why: str = Field(
        description="why it is this one: set, kept with the champion, or chosen by the classes' shares"
    )
    positive: str = Field("", description="of f1: the class that it is about")
    quantile: float = Field(0.5, description="of pinball: the quantile")
    costs: tuple[tuple[float, ...], ...] = Field(
        (), description="of cost: for each true class, the cost of answering each class"
    )


class MetricValue(Record):
    """The value of the gate's metric for one model, and its confidence interval."""

    value: float
    low: float
    high: float


class Evaluation(Record):
    """Comparison of candidate and champion on the same test rows (the result of `evaluate`).

    `predictions` is the path of a Parquet file with one row per test row: the label, and for candidate and champion
    the predicted class and the probability of the true class. For a regression: the target, and for candidate and
    champion the predicted number.
    """

    rows: int
    candidate: AnyScore
    champion: AnyScore | None
    champion_version: str | None
    both_right: int = 0
    only_candidate_right: int = 0
    only_champion_right: int = 0
    both_wrong: int = 0
    class_changes: tuple[tuple[int, int], ...] = Field(
        (), description="per class: rows that only the candidate, only the champion got right"
    )
    mistakes: tuple[Mistake, ...] = ()
    largest_errors: tuple[LargestError, ...] = Field(
        (), description="of a regression, the largest first; of a language model: tokens, and loss per token"
    )
    predictions: str
    predictions_digest: str = Field(
        "", description="sha256 of that file; empty in records of earlier versions"
    )
    anchor_version: str | None = Field(
        None, description='reference of policy "not_worse", where not the champion'
    )
    baseline: str = Field(
        "",
        description="the model that has learned nothing, in words; the predictions have its columns. Empty where the "
        "problem defines no such model",
    )
    metric: GateMetric | None = Field(
        None, description="what the gate compares; null for a problem with a single metric"
    )
    metric_values: dict[str, MetricValue] = Field(
        {}, description="its values by model, also of `baseline`; empty if it is the problem's own metric"
    )
    left_out: int = Field(
        0,
        description="test rows that were training rows of the champion, the anchor or the initial weights; in none of "
        "the numbers here",
    )
    training_rows_known: bool = Field(True, description="whether the training rows of both could be read")
    own_columns: str = Field(
        "",
        description="how champion and anchor are scored if they have other columns; empty: they have the same",
    )
    initial: InitialWeights | None = Field(None, description="what the candidate was fine-tuned from")
    champion_is_parent: bool = Field(False, description="whether these are the champion's weights")

    @property
    def examples(self) -> "tuple[Mistake, ...] | tuple[LargestError, ...]":
        """The rows that were predicted worst."""
        return self.mistakes or self.largest_errors


Question = Literal["better", "not_worse", "unless_worse"]


class Look(Record):
    """One comparison (look) of a candidate with the reference model, within a reign.

    A reign is the time in which one model is the reference with which candidates are compared. `crossed` is packed
    text: the numbers of the sign flips that crossed the boundary at this look. Differences and statistics are
    candidate minus reference, so that a positive value is in favour of the candidate. The statistic of question
    "unless_worse" is in favour of the reference: the candidate passes unless it exceeds the boundary.
    """

    question: Question
    measure: str = Field(
        description="squared_error of a regression; next_token_loss of a language model; accuracy of a classification, "
        "or log_loss between two models without a mistake; row_<name> of another gate.metric"
    )
    reference_version: str | None
    reference_excess: float = Field(
        0.0, description="what having been chosen on these rows adds to the reference's accuracy"
    )
    key: str
    number: int = Field(description="1 for the first of the reign")
    error_control: Literal["joint", "strict"]
    alpha: float = Field(description="level of the whole reign: 1 - gate.confidence")
    horizon: int = Field(description="comparisons of the reign that are planned for")
    margin: float = Field(
        description="loss of accuracy, or growth of the mean squared error as a share, that the question allows; 0 for "
        "better"
    )
    rows: int
    rows_digest: str
    gained: int = Field(description="rows that speak for the candidate")
    lost: int = Field(description="rows that speak for the reference")
    reference_wrong: int = Field(description="rows that the reference got wrong")
    difference: float = Field(
        description="mean difference: share of rows, nats for log_loss, or the unit of the target squared"
    )
    statistic: float = Field(description="in standard deviations")
    p: float = Field(description="p-value of this comparison alone")
    boundary: float | None = Field(description="what the statistic has to exceed; none: only `level` counts")
    level: float = Field(description="what p may reach at most instead")
    spent: float = Field(description="level spent in the reign, this comparison included")
    crossed: str
    passed: bool
    reference_error: float = Field(
        0.0,
        description="the reference's mean error: of squared_error, squared; of a metric up to 1, 1 - metric",
    )
    standard_error: float = Field(0.0, description="that of the mean difference of errors, with the margin")
    baseline: str = Field(
        "", description="the reference in words, if it is the model that has learned nothing, and no version"
    )


class Choice(Record):
    """Measured gain and accuracy of a promoted candidate, and both corrected for selection bias (winner's curse)."""

    gain: float
    corrected_gain: float
    accuracy: float
    corrected_accuracy: float


class Rule(Record):
    """One rule of the gate with its numbers: the rule compares `value` with `limit`."""

    name: str
    passed: bool
    value: float
    limit: float
    explanation: str


# Why a candidate that passed the gate is not promoted; also the reason of a decision.
ALREADY_CHAMPION = "Is the champion already"  # the beginning of a verdict's summary
NOT_AGAIN = "the weights were rolled back before, so they are not promoted again automatically"


class Verdict(Record):
    """The gate's decision and all reasons for it."""

    promote: bool
    summary: str = Field(
        description="the decision and its reason in a sentence; the rules have the statistics"
    )
    rules: tuple[Rule, ...]
    champion_version: str | None = Field(
        description="what the champion alias pointed to when the comparison began"
    )
    policy: dict[str, Any] = Field({}, description="the gate's settings that led to this verdict")
    looks: tuple[Look, ...] = Field((), description="what the comparisons measured and spent")
    metric: GateMetric | None = Field(
        None, description="what was compared; null for a problem with a single metric"
    )
    choice: Choice | None = Field(None, description="of a promotion over a reference: its gain, corrected")


class Release(Record):
    """The model version that a retraining run registered; also stored as `release.json` in the run's folder."""

    recipe: str = Field(description="name of the recipe")
    run_key: str = Field(description="sha256 over data, recipe, code, settings and versions")
    dataset_fingerprint: str = Field(description="sha256 over the source and its preparation")
    weights_digest: str = Field(description="sha256 over the model's weights")
    model: str = Field(description="name of the registered model")
    version: str = Field(description="number of the version in the registry")
    alias: Literal["champion", "challenger", "previous", "none"] = Field(
        description="alias that the verdict gave the version"
    )
    train_rows: int = Field(description="rows of the train split, validation rows included")
    test_rows: int = Field(description="rows on which candidate and champion were compared")
    epochs: int = Field(description="epochs trained")
    selected_epoch: int = Field(description="epoch whose weights were kept")
    verdict: Verdict = Field(description="decision of the gate, with reasons")
    data: DataCheck | None = Field(None, description="comparison of the dataset with the champion's")
    evaluation: str = Field(description="folder of the comparison, under the run's `evaluation`")
    initial: str = Field("", description="weights that the training started from; empty: new weights")
    data_changes: str = Field(
        "", description="rows that are new, gone or changed since the recipe's last run; empty: none"
    )
    champion_jump: str = Field(
        "",
        description="how an unchanged champion's score differs from that of the last run; empty: it does not",
    )
    metrics: dict[str, float] = Field(description="final metrics by name, such as `accuracy` or `rmse`")
    recipe_metrics: tuple[str, ...] = Field((), description="names in `metrics` that the recipe added")
    mlflow_run_id: str = Field(description="id of the MLflow run")
    report: str = Field(description="path of the report page")
    seconds: float = Field(description="wall time; of a reused release, of the command that found it")
    goodput: Goodput = Field(description="of the run that made the version")
    reproducible: bool | None = Field(None, description="result of the replay check; none: not checked")
    reproducible_reason: str = Field(
        "not checked: an older version of Evergreen trained it", description="reason of `reproducible`"
    )
    stopped: str = Field("", description="why training ended before its last epoch; empty if it did not")
    reused: bool = Field(False, description="whether an earlier run had made the version")
