"""The threshold of a classifier of two classes: the answers, the choice on rows, and its settings."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from small_runs import tiny_settings
from small_tables import described, values

from training.errors import SettingError
from training.problems import problem_at, problem_named
from training.problems.probabilities import score
from training.problems.thresholds import best_threshold, check_threshold, predicted_classes
from training.settings.overrides import parse_assignments, resolve
from training.settings.schema import DataSettings

CLASSES = ("well", "ill")


def some_rows(seed: int, rows: int = 60, steps: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels of which few are 1, probabilities that know something of them, and weights."""
    random = np.random.default_rng(seed)
    labels = (random.random(rows) < 0.2).astype(np.int64)
    second = np.clip(0.25 + 0.15 * labels + random.normal(0, 0.12, rows), 0.01, 0.99)
    if steps:
        second = np.round(second * steps) / steps
    probabilities = np.stack([1 - second, second], axis=1).astype(np.float32)
    return labels, probabilities, random.integers(0, 4, rows).astype(float)


def f1(labels: np.ndarray, answers: np.ndarray, weights: np.ndarray) -> float:
    from sklearn.metrics import f1_score

    return float(f1_score(labels, answers, sample_weight=weights, zero_division=0.0))


def balanced(labels: np.ndarray, answers: np.ndarray, weights: np.ndarray) -> float:
    from sklearn.metrics import balanced_accuracy_score

    return float(balanced_accuracy_score(labels, answers, sample_weight=weights))


def cheapness(labels: np.ndarray, answers: np.ndarray, weights: np.ndarray) -> float:
    return -float((weights * np.where(labels == 1, 7.0, 2.0) * (labels != answers)).sum())


RULES: list[tuple[Any, Callable[..., float]]] = [
    ("f1", f1),
    ("balanced_accuracy", balanced),
    ((("ill", 7.0), ("well", 2.0)), cheapness),
]


@pytest.mark.parametrize(("rule", "goodness"), RULES)
@pytest.mark.parametrize("steps", [0, 20])
@pytest.mark.parametrize("weighted", [False, True])
def test_no_other_threshold_is_better(
    rule: Any, goodness: Callable[..., float], steps: int, weighted: bool
) -> None:
    for seed in range(5):
        labels, probabilities, weights = some_rows(seed, steps=steps)
        given = weights if weighted else None
        each = weights if weighted else np.ones(len(labels))
        chosen = best_threshold(rule, labels, probabilities, CLASSES, 1, given)
        ours = goodness(labels, predicted_classes(probabilities, chosen), each)
        tried = [*np.linspace(0.001, 0.999, 999), *(probabilities[:, 1] + 1e-6)]
        best = max(goodness(labels, predicted_classes(probabilities, one), each) for one in tried)
        assert ours == pytest.approx(best, abs=1e-12)
        assert 0 < chosen < 1


def test_the_f1_may_be_that_of_the_first_class() -> None:
    labels, probabilities, _ = some_rows(1)
    swapped = best_threshold("f1", 1 - labels, probabilities[:, ::-1], CLASSES[::-1], 0)
    chosen = best_threshold("f1", labels, probabilities, CLASSES, 1)
    answers = predicted_classes(probabilities[:, ::-1], swapped)
    assert np.array_equal(1 - answers, predicted_classes(probabilities, chosen))


def test_of_equally_good_thresholds_the_one_nearest_to_a_half_is_taken() -> None:
    second = np.array([0.1, 0.2, 0.8, 0.9], np.float32)
    probabilities = np.stack([1 - second, second], axis=1)
    assert best_threshold("f1", np.array([0, 0, 1, 1]), probabilities, CLASSES, 1) == pytest.approx(0.5)


def test_rows_of_one_class_give_a_half(caplog: pytest.LogCaptureFixture) -> None:
    _, probabilities, _ = some_rows(0)
    labels = np.zeros(len(probabilities), np.int64)
    assert best_threshold("f1", labels, probabilities, CLASSES, 1) == 0.5
    assert "the validation rows are of one class only" in caplog.text


def test_scores_findings_and_columns_use_the_threshold() -> None:
    labels, probabilities, _ = some_rows(2)
    plain, moved = problem_named("classification"), problem_at("classification", 0.3)
    assert problem_at("classification", None) == plain
    version = described(values(60)).model_copy(update={"classes": CLASSES})
    answers = (probabilities[:, 1] >= 0.3).astype(int)
    assert (answers != probabilities.argmax(1)).sum() > 0
    made = moved.score(labels, probabilities, version, 0.95, 1.0, 1.0)
    assert made.accuracy == pytest.approx((answers == labels).mean())  # type: ignore[attr-defined]
    assert made.confusion[1][1] == int(((answers == 1) & (labels == 1)).sum())  # type: ignore[attr-defined]
    usual = score(labels, probabilities, CLASSES, 0.95, 1.0, 1.0)
    assert (made.log_loss, made.calibration_error) == (usual.log_loss, usual.calibration_error)  # type: ignore[attr-defined]
    assert np.array_equal(moved.row_columns(labels, probabilities)[""], answers)
    both = problem_at("classification", 0.3, 0.2).findings(labels, probabilities, probabilities, version)
    theirs = (probabilities[:, 1] >= 0.2) == labels
    assert both["only_candidate_right"] == int(((answers == labels) & ~theirs).sum())
    assert both["only_champion_right"] == int((theirs & (answers != labels)).sum())
    for mistake in both["mistakes"]:
        assert mistake.predicted == CLASSES[answers[mistake.row]]
        assert mistake.probability == pytest.approx(probabilities[mistake.row, answers[mistake.row]])


def test_settings_of_a_threshold_are_checked() -> None:
    two = described(values()).model_copy(update={"classes": CLASSES})
    for fine in (0.2, "f1", "balanced_accuracy", {"ill": 10, "well": 1}):
        check_threshold(tiny_settings(training={"threshold": fine}), two)
    for wrong in (0, 1, -0.5, 1.5, "auc", {"ill": 0, "well": 1}):
        with pytest.raises(SettingError, match=r"training\.threshold"):
            tiny_settings(training={"threshold": wrong})
    three = two.model_copy(update={"classes": ("a", "b", "c")})
    with pytest.raises(SettingError, match=r"needs two classes, and the dataset has 3: a, b, c"):
        check_threshold(tiny_settings(training={"threshold": 0.3}), three)
    with pytest.raises(SettingError, match=r"a regression predicts no classes"):
        check_threshold(tiny_settings(training={"threshold": 0.3}), described(values(), np.ones(40)))
    with pytest.raises(SettingError, match=r"the cost of a mistake on a row of each class, 'well' and 'ill'"):
        check_threshold(tiny_settings(training={"threshold": {"ill": 10}}), two)
    streamed = tiny_settings(training={"threshold": "f1"}).model_copy(
        update={"data": DataSettings(feed="stream")}
    )
    with pytest.raises(SettingError, match=r"data\.feed: the validation rows"):
        check_threshold(streamed, two)


def test_costs_may_come_from_the_command_line() -> None:
    settings = resolve(tiny_settings(), parse_assignments(['training.threshold={"well": 1, "ill": 10}']))
    assert settings.training.threshold == (("ill", 10.0), ("well", 1.0))  # type: ignore[attr-defined]
    assert settings.model_validate_json(settings.model_dump_json()) == settings
