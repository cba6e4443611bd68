"""Scores of a classifier's probabilities on labelled rows, as pure functions of NumPy arrays.

Throughout, `labels` is int64 of shape (rows,), and `probabilities` is float32 of shape (rows, classes), each row of
which is a distribution (softmax outputs, not logits). A row's predicted class is the class with the largest
probability, and the first of these if several are equal, unless the model has a threshold
(:mod:`training.problems.thresholds`).
"""

import logging
import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
import numpy.typing as npt
from pydantic import Field

from training.errors import DataError, TrainingError
from training.problems.thresholds import predicted_classes
from training.records import Mistake, ProblemName, Record, Score

Labels = npt.NDArray[np.int64]
Probabilities = npt.NDArray[np.float32]
Weights = npt.NDArray[np.float64]

log = logging.getLogger("evergreen.evaluate")

CALIBRATION_BINS = 15
_SUM_TOLERANCE = 1e-2  # a bfloat16 softmax sums to 1 within 0.4 %; logits miss 1 by far more


class ClassScore(Record):
    """Scores of one class on the test rows."""

    name: str
    rows: int
    precision: float
    recall: float
    f1: float


class ClassificationScore(Score):
    """Scores of one classifier on the test rows; `low` to `high` is the interval of its accuracy."""

    problem: ProblemName = "classification"
    accuracy: float
    log_loss: float
    macro_f1: float
    calibration_error: float = Field(description="expected calibration error over 15 equal-width bins")
    classes: tuple[ClassScore, ...]
    confusion: tuple[tuple[int, ...], ...] = Field(description="rows: true class, columns: predicted")
    images_per_s: float


class Paired(Record):
    """Counts of rows by which of two models predicted the right class; fields are named as in :class:`Evaluation`.

    `class_changes[k]` is a pair: the rows of class k that only the candidate got right, and those that only the
    champion got right. Without a champion all counts are 0 and `class_changes` is empty.
    """

    both_right: int = 0
    only_candidate_right: int = 0
    only_champion_right: int = 0
    both_wrong: int = 0
    class_changes: tuple[tuple[int, int], ...] = ()


def score(
    labels: Labels,
    probabilities: Probabilities,
    classes: Sequence[str],
    confidence: float,
    latency_ms: float,
    images_per_s: float,
    weights: Weights | None = None,
    threshold: float | None = None,
) -> ClassificationScore:
    """All scores of one model; `low` and `high` are Wilson's interval for the accuracy at `confidence`.

    With `weights` (rows,) of mean 1, all scores are weighted means, only the counts of rows are not. The interval is
    then that of as many rows of equal weight as have the same variance, sum(w)^2 / sum(w^2): L. Kish, Survey Sampling
    (1965), section 8.2.

    The precision, recall or F1 of a class is 0 where it is undefined, because the class has no test rows or is never
    predicted; `macro_f1` includes these zeros. `log_loss` is in nats.

    Raises :class:`TrainingError` when a probability is NaN or infinite, and ValueError when shapes, labels or
    `confidence` are impossible or a row of `probabilities` is not a distribution.
    """
    _check(labels, probabilities)
    if len(classes) != probabilities.shape[1]:
        raise ValueError(f"probabilities have {probabilities.shape[1]} columns for {len(classes)} classes")
    predicted, likelier = predicted_classes(probabilities, threshold), predicted_classes(probabilities)
    weights = np.ones(len(labels)) if weights is None else weights
    accuracy = min(float((weights * (predicted == labels)).sum() / len(labels)), 1.0)
    rows = float(weights.sum() ** 2 / np.square(weights).sum())
    low, high = wilson(accuracy, rows, confidence)
    by_class, confusion = _by_class(labels, predicted, classes, weights)
    return ClassificationScore(
        accuracy=accuracy,
        low=low,
        high=high,
        confidence=confidence,
        log_loss=_log_loss(labels, probabilities, weights),
        macro_f1=sum(class_score.f1 for class_score in by_class) / len(by_class),
        calibration_error=_calibration_error(likelier == labels, probabilities.max(axis=1), weights),
        classes=by_class,
        confusion=confusion,
        latency_ms=latency_ms,
        images_per_s=images_per_s,
    )


def paired(
    labels: Labels,
    candidate: Probabilities,
    champion: Probabilities | None,
    thresholds: tuple[float | None, float | None] = (None, None),
) -> Paired:
    """Count the rows that both, one or none of two models predict correctly, from their probabilities for these rows.

    `thresholds` are those of candidate and champion (:mod:`training.problems.thresholds`).

    Raises :class:`TrainingError` and ValueError as :func:`score` does, and ValueError when the two models have
    different numbers of classes or rows.
    """
    _check(labels, candidate)
    if champion is None:
        return Paired()
    if champion.shape != candidate.shape:
        raise ValueError(
            f"the candidate's probabilities are {candidate.shape}, the champion's {champion.shape}"
        )
    _check(labels, champion)
    ours, theirs = (
        predicted_classes(given, threshold) == labels
        for given, threshold in zip((candidate, champion), thresholds, strict=True)
    )
    count = candidate.shape[1]
    gained = np.bincount(labels[ours & ~theirs], minlength=count)
    lost = np.bincount(labels[theirs & ~ours], minlength=count)
    return Paired(
        both_right=int((ours & theirs).sum()),
        only_candidate_right=int(gained.sum()),
        only_champion_right=int(lost.sum()),
        both_wrong=int((~ours & ~theirs).sum()),
        class_changes=tuple(zip(gained.tolist(), lost.tolist(), strict=True)),
    )


def aligned(probabilities: Probabilities, names: tuple[str, ...], classes: tuple[str, ...]) -> Probabilities:
    """Reorder the columns to the order of `classes`; a class that the champion does not know gets probability 0.

    The probabilities of a row are rescaled to sum to 1; with the same classes, they are returned as they are. With
    other classes, raises :class:`DataError` when one is not finite.
    """
    if names == classes:
        return probabilities
    if not np.isfinite(probabilities).all():
        raise DataError(
            "the champion gives probabilities that are not finite, so it is damaged. `evergreen rollback` points the "
            "alias to a sound version."
        )
    log.warning(
        "the champion knows other classes: %s; it is compared on the rows as they are", ", ".join(names)
    )
    shared = np.zeros((len(probabilities), len(classes)), np.float32)
    for column, name in enumerate(classes):
        if name in names:
            shared[:, column] = probabilities[:, names.index(name)]
    left = shared.sum(axis=1, keepdims=True)
    # A row whose whole probability is on classes that the dataset no longer has gets the uniform distribution.
    rescaled = np.where(left > 1e-6, shared / np.maximum(left, 1e-6), np.float32(1 / len(classes)))
    return rescaled.astype(np.float32)


def worst_mistakes(
    labels: Labels,
    probabilities: Probabilities,
    classes: Sequence[str],
    limit: int = 24,
    threshold: float | None = None,
) -> tuple[Mistake, ...]:
    """At most `limit` wrongly classified rows, by descending probability of the predicted class, then by row number.

    Raises :class:`TrainingError` and ValueError as :func:`score` does.
    """
    _check(labels, probabilities)
    predicted = predicted_classes(probabilities, threshold)
    given = probabilities[np.arange(len(labels)), predicted]
    wrong = np.flatnonzero(predicted != labels)
    wrong = wrong[np.argsort(-given[wrong], kind="stable")][:limit]

    def mistake(row: int) -> Mistake:
        truth, guess = classes[labels[row]], classes[predicted[row]]
        return Mistake(row=row, truth=truth, predicted=guess, probability=float(given[row]))

    return tuple(mistake(row) for row in wrong.tolist())


def _check(labels: Labels, probabilities: Probabilities) -> None:
    rows, least, most = len(labels), labels.min(initial=0), labels.max(initial=0)
    if labels.ndim != 1 or rows == 0 or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(f"labels must be one or more integers in a row, got {labels.dtype} {labels.shape}")
    if probabilities.ndim != 2 or len(probabilities) != rows or probabilities.shape[1] < 1:
        raise ValueError(f"probabilities must have shape ({rows}, classes), got {probabilities.shape}")
    if least < 0 or most >= probabilities.shape[1]:
        raise ValueError(f"labels must lie in 0..{probabilities.shape[1] - 1}, got {least}..{most}")
    _check_distributions(probabilities)


def _check_distributions(probabilities: Probabilities) -> None:
    broken = np.flatnonzero(~np.isfinite(probabilities).all(axis=1))
    if len(broken):
        raise TrainingError(
            f"test row {broken[0]}: the model's probabilities are not finite ({len(broken)} of "
            f"{len(probabilities)} rows). Its weights or activations overflowed: lower "
            "training.learning_rate, set training.clip_norm, or use training.precision=float32."
        )
    off = np.abs(probabilities.sum(axis=1, dtype=np.float64) - 1) > _SUM_TOLERANCE
    odd = np.flatnonzero(off | (probabilities < 0).any(axis=1))
    if len(odd):
        raise ValueError(f"test row {odd[0]}: not a distribution; pass probabilities (softmax), not logits")


def _by_class(
    labels: Labels, predicted: npt.NDArray[np.int64], classes: Sequence[str], weights: Weights
) -> tuple[tuple[ClassScore, ...], tuple[tuple[int, ...], ...]]:
    """Scores of each class, and the confusion matrix: rows are true classes, columns are predicted classes.

    The scores are weighted, the matrix counts rows.

    Written in NumPy, because importing scikit-learn's metrics and scipy's statistics takes as long as a small
    evaluation.
    """
    count = len(classes)
    cells, size = labels * count + predicted, count * count
    confusion = np.bincount(cells, minlength=size).reshape(count, count)
    weighed: Weights = np.bincount(cells, weights, minlength=size).astype(np.float64).reshape(count, count)
    hits, rows, guesses = weighed.diagonal(), weighed.sum(axis=1), weighed.sum(axis=0)
    of_class = confusion.sum(axis=1).tolist()
    columns = (_shares(hits, guesses), _shares(hits, rows), _shares(2 * hits, guesses + rows), of_class)
    scores = tuple(
        ClassScore(name=name, rows=total, precision=precision, recall=recall, f1=f1)
        for name, precision, recall, f1, total in zip(classes, *columns, strict=True)
    )
    return scores, tuple(tuple(row) for row in confusion.tolist())


def _shares(parts: Weights, wholes: Weights) -> list[float]:
    """`parts` / `wholes` by element, and 0 where `wholes` is 0."""
    shares: list[float] = (parts / np.where(wholes > 0, wholes, 1.0)).tolist()
    return shares


def wilson(share: float, rows: float, confidence: float) -> tuple[float, float]:
    """Wilson's score interval of a proportion `share` of `rows` independent rows.

    Equation 4 of R. G. Newcombe, Statistics in Medicine 17 (1998), 857-872.
    """
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    right, scale = share * rows, 2 * (rows + z * z)
    centre = (2 * right + z * z) / scale
    reach = z * math.sqrt(z * z + 4 * right * (1 - share)) / scale
    return (centre - reach if share > 0 else 0.0), (centre + reach if share < 1 else 1.0)


def _log_loss(labels: Labels, probabilities: Probabilities, weights: Weights) -> float:
    """Mean of -ln(probability of the true class), in nats, clipped at float32's epsilon as scikit-learn does.

    scikit-learn's `log_loss` builds a one-hot (rows, classes) matrix, which takes too much memory for a large test
    split.
    """
    truth = probabilities[np.arange(len(labels)), labels].astype(np.float64)
    smallest = float(np.finfo(np.float32).eps)
    return float((weights * -np.log(np.clip(truth, smallest, 1 - smallest))).mean())


def _calibration_error(right: npt.NDArray[np.bool_], top: npt.NDArray[np.float32], weights: Weights) -> float:
    """Expected calibration error: the mean over rows of |accuracy - confidence| of the row's confidence bin.

    Equation 3 of C. Guo et al., "On Calibration of Modern Neural Networks", ICML 2017; bins are (low, high].
    """
    confidence = top.astype(np.float64)
    bins = np.clip(np.ceil(confidence * CALIBRATION_BINS) - 1, 0, CALIBRATION_BINS - 1).astype(np.int64)
    gap = np.bincount(bins, weights=weights * (right - confidence))
    return float(np.abs(gap).sum() / len(right))
