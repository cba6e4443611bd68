"""One number a row for each metric: the mean is the metric of scikit-learn, and the spread is the known variance."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics as sk

from training.problems.probabilities import wilson
from training.problems.row_metrics import ROW_METRICS, ClassRows
from training.records import GateMetric

CLASSES = ("no", "yes", "maybe")


def rows_of(seed: int, rows: int = 300, classes: int = 2, share: float = 0.3) -> ClassRows:
    """Rows of a model that has learned something; every class has rows."""
    rng = np.random.default_rng(seed)
    shares = [1 - share, *[share / (classes - 1)] * (classes - 1)]
    labels = rng.choice(classes, rows, p=shares)
    labels[:classes] = np.arange(classes)
    logits = rng.normal(size=(rows, classes)) + 1.5 * np.eye(classes)[labels]
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    probabilities = np.round(probabilities, 2)  # with equal scores
    probabilities /= probabilities.sum(axis=1, keepdims=True)
    return ClassRows(labels, probabilities.argmax(axis=1), probabilities, CLASSES[:classes])


def numbers(name: str, rows: object, **metric: object) -> np.ndarray:
    return ROW_METRICS[name].numbers(GateMetric.model_validate({"name": name, "why": "-"} | metric), rows)


COSTS = ((0.0, 1.0, 1.0), (5.0, 0.0, 2.0), (3.0, 1.0, 0.0))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("classes", [2, 3])
def test_the_mean_is_the_metric_of_scikit_learn(seed: int, classes: int) -> None:
    rows = rows_of(seed, classes=classes)
    true, predicted, probabilities = rows.labels, rows.predicted, rows.probabilities
    costs = np.array(COSTS)[true, predicted].mean()
    expected = {
        "accuracy": sk.accuracy_score(true, predicted),
        "balanced_accuracy": sk.balanced_accuracy_score(true, predicted),
        "log_loss": -np.log(np.clip(probabilities[np.arange(300), true], 1.2e-7, 1)).mean(),
        "cost": costs,
        "f1": sk.f1_score(true, predicted, labels=[1], average="macro"),
    }
    for name, value in expected.items():
        metric = {"positive": "yes", "costs": COSTS}
        assert numbers(name, rows, **metric).mean() == pytest.approx(value, rel=1e-6), name
    squares = np.square(probabilities - np.eye(classes)[true]).sum(axis=1).mean()
    assert numbers("brier", rows).mean() == pytest.approx(squares / 2 if classes == 2 else squares)


@pytest.mark.parametrize("seed", range(5))
def test_auc_and_brier_of_two_classes(seed: int) -> None:
    rows = rows_of(seed, share=0.1)
    scores = rows.probabilities[:, 1]
    assert numbers("auc", rows).mean() == pytest.approx(sk.roc_auc_score(rows.labels, scores), rel=1e-12)
    assert numbers("brier", rows).mean() == pytest.approx(sk.brier_score_loss(rows.labels, scores))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("quantile", [0.1, 0.5, 0.9])
def test_metrics_of_numbers(seed: int, quantile: float) -> None:
    rng = np.random.default_rng(seed)
    targets, predicted = rng.normal(size=(2, 200))
    rows = targets, predicted
    assert numbers("squared", rows).mean() == pytest.approx(sk.mean_squared_error(targets, predicted))
    assert numbers("absolute", rows).mean() == pytest.approx(sk.mean_absolute_error(targets, predicted))
    expected = sk.mean_pinball_loss(targets, predicted, alpha=quantile)
    assert numbers("pinball", rows, quantile=quantile).mean() == pytest.approx(expected)


def delong(rows: ClassRows, other: ClassRows) -> float:
    """Variance of the difference of two AUCs by the formula of DeLong et al. (1988), computed pair by pair."""
    positive = rows.labels == 1
    by_positive, by_negative = [], []
    for each in (rows, other):
        scores = each.probabilities[:, 1]
        wins = np.greater.outer(scores[positive], scores[~positive]) + 0.5 * np.equal.outer(
            scores[positive], scores[~positive]
        )
        by_positive.append(wins.mean(axis=1))
        by_negative.append(wins.mean(axis=0))
    variances = [np.var(parts[0] - parts[1], ddof=1) / len(parts[0]) for parts in (by_positive, by_negative)]
    return float(sum(variances))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("share", [0.5, 0.1])
def test_the_variance_of_a_difference_of_aucs_is_that_of_delong(seed: int, share: float) -> None:
    rows = rows_of(seed, 2000, share=share)
    again = rows_of(seed + 100, 2000, share=share)
    other = ClassRows(rows.labels, again.predicted, again.probabilities, rows.classes)
    differences = numbers("auc", rows) - numbers("auc", other)
    centred = differences - differences.mean()
    assert np.square(centred).sum() / 2000**2 == pytest.approx(delong(rows, other), rel=0.02)


@pytest.mark.parametrize("name", ["f1", "balanced_accuracy", "auc"])
def test_the_spread_of_the_numbers_is_that_of_the_metric_over_samples(name: str) -> None:
    """The bootstrap over rows, which no formula enters, has the variance that the numbers give, within 15 %."""
    rows = rows_of(3, 1500, share=0.2)
    rng = np.random.default_rng(0)
    resampled = []
    for _ in range(1500):
        chosen = rng.integers(1500, size=1500)
        again = ClassRows(
            rows.labels[chosen], rows.predicted[chosen], rows.probabilities[chosen], rows.classes
        )
        resampled.append(numbers(name, again, positive="yes").mean())
    own = numbers(name, rows, positive="yes")
    variance = ROW_METRICS[name]._variance(own, rows.labels)
    assert variance == pytest.approx(np.var(resampled), rel=0.15)


def test_the_interval_of_an_accuracy_is_wilsons() -> None:
    rows = rows_of(1)
    hits = numbers("accuracy", rows)
    value = ROW_METRICS["accuracy"].value(hits, rows.labels, 0.95)
    assert (value.low, value.high) == pytest.approx(wilson(hits.mean(), 300, 0.95))


@pytest.mark.parametrize("name", ["auc", "balanced_accuracy", "f1"])
def test_the_interval_of_a_model_without_a_mistake_is_that_of_the_rarest_class(name: str) -> None:
    labels = np.repeat([0, 1], [90, 10])
    rows = ClassRows(labels, labels, np.eye(2)[labels], CLASSES[:2])
    value = ROW_METRICS[name].value(numbers(name, rows, positive="yes"), labels, 0.95)
    assert (value.value, value.high) == (1.0, 1.0)
    assert value.low == pytest.approx(wilson(1.0, 10, 0.95)[0])


def test_rows_of_one_class_rank_nothing() -> None:
    labels = np.zeros(20, np.int64)
    rows = ClassRows(labels, labels, np.eye(2)[labels], CLASSES[:2])
    assert (numbers("auc", rows) == 0.5).all()
    assert (numbers("f1", rows, positive="yes") == 0).all()
    assert numbers("balanced_accuracy", rows).mean() == 1.0


@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(3, 60), classes=st.integers(2, 3))
def test_the_order_of_rows_and_the_scale_of_scores_change_nothing(seed: int, rows: int, classes: int) -> None:
    made = rows_of(seed, rows, classes)
    mixed = np.random.default_rng(seed).permutation(rows)
    moved = ClassRows(made.labels[mixed], made.predicted[mixed], made.probabilities[mixed], made.classes)
    for name in (
        "accuracy",
        "balanced_accuracy",
        "log_loss",
        "brier",
        "f1",
        *(["auc"] if classes == 2 else []),
    ):
        there, back = (numbers(name, each, positive="yes") for each in (made, moved))
        assert back == pytest.approx(there[mixed], rel=1e-9, abs=1e-12)
        value = ROW_METRICS[name].value(there, made.labels, 0.9)
        assert value.low <= value.value <= value.high
    if classes == 2:
        squeezed = np.stack([1 - made.probabilities[:, 1] ** 3, made.probabilities[:, 1] ** 3], axis=1)
        again = ClassRows(made.labels, made.predicted, squeezed, made.classes)
        assert numbers("auc", again) == pytest.approx(numbers("auc", made))
