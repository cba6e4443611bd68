import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

from training.errors import TrainingError
from training.problems.probabilities import Paired, paired, score, worst_mistakes
from training.records import Evaluation

CLASSES = ("cat", "dog", "owl")


def one_hot(predicted, classes=3):
    return np.eye(classes, dtype=np.float32)[np.asarray(predicted)]


def drawn(seed, rows=500, classes=4):
    """Random labels, and softmax outputs that correlate with them."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=rows)
    logits = rng.normal(size=(rows, classes)) + 1.5 * np.eye(classes)[labels]
    exp = np.exp(logits)
    return labels, (exp / exp.sum(axis=1, keepdims=True)).astype(np.float32)


def scored(labels, probabilities, **changed):
    names = tuple(f"class {k}" for k in range(probabilities.shape[-1]))
    return score(
        labels,
        probabilities,
        **{"classes": names, "confidence": 0.95, "latency_ms": 1.5, "images_per_s": 9.0} | changed,
    )


def test_score_of_a_hand_made_table():
    labels = np.array([0, 0, 0, 1, 1, 1])
    result = scored(labels, one_hot([0, 0, 1, 1, 1, 1]), classes=CLASSES)
    assert result.accuracy == 5 / 6
    assert result.confusion == ((2, 1, 0), (0, 3, 0), (0, 0, 0))
    cat, dog, owl = result.classes
    assert (cat.name, cat.rows, cat.precision, cat.recall, cat.f1) == (
        "cat",
        3,
        1.0,
        pytest.approx(2 / 3),
        pytest.approx(0.8),
    )
    assert (dog.rows, dog.precision, dog.recall) == (3, 0.75, 1.0)
    assert (owl.rows, owl.precision, owl.recall, owl.f1) == (0, 0.0, 0.0, 0.0)
    assert result.macro_f1 == pytest.approx((0.8 + 6 / 7 + 0) / 3)
    assert (result.confidence, result.latency_ms, result.images_per_s) == (0.95, 1.5, 9.0)


def test_wilson_interval_of_newcombes_table():
    """81 of 263 at 95 %: 0.2553 to 0.3662 (R. Newcombe, Statistics in Medicine 17 (1998), table I)."""
    labels = np.zeros(263, dtype=np.int64)
    result = scored(labels, one_hot([0] * 81 + [1] * 182))
    assert (round(result.low, 4), round(result.high, 4)) == (0.2553, 0.3662)


@pytest.mark.parametrize(
    ("predicted", "accuracy", "low", "high"), [(0, 1.0, 0.2065, 1.0), (1, 0.0, 0.0, 0.7935)]
)
def test_one_row_has_a_wide_interval_inside_0_and_1(predicted, accuracy, low, high):
    result = scored(np.array([0]), one_hot([predicted]))
    assert result.accuracy == accuracy
    assert (result.low, result.high) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))


def test_a_higher_confidence_widens_the_interval():
    labels, probabilities = drawn(1)
    narrow, wide = (scored(labels, probabilities, confidence=value) for value in (0.8, 0.99))
    assert wide.low < narrow.low < narrow.accuracy < narrow.high < wide.high


@pytest.mark.parametrize("seed", range(3))
def test_agrees_with_scikit_learn(seed):
    labels, probabilities = drawn(seed)
    predicted = probabilities.argmax(axis=1)
    result = scored(labels, probabilities)
    assert result.accuracy == metrics.accuracy_score(labels, predicted)
    assert result.log_loss == pytest.approx(metrics.log_loss(labels, probabilities), rel=1e-6)
    assert result.macro_f1 == pytest.approx(metrics.f1_score(labels, predicted, average="macro"))


def test_a_certain_and_wrong_row_costs_a_finite_loss():
    """-ln(2**-23) of float32's epsilon."""
    assert scored(np.array([0]), one_hot([1])).log_loss == pytest.approx(23 * np.log(2))


def test_uniform_probabilities_cost_ln_k_and_predict_the_first_class():
    result = scored(np.array([0, 1, 2, 0]), np.full((4, 3), 1 / 3, dtype=np.float32))
    assert result.log_loss == pytest.approx(np.log(3))
    assert result.confusion == ((2, 0, 0), (1, 0, 0), (1, 0, 0))


def test_calibration_error_by_hand():
    """Ten rows at 0.8, 6 right: gap 0.2; ten rows at 0.6, 9 right: gap 0.3; other bins are empty."""
    probabilities = np.array([[0.8, 0.2]] * 10 + [[0.6, 0.4]] * 10, dtype=np.float32)
    labels = np.array([0] * 6 + [1] * 4 + [0] * 9 + [1])
    assert scored(labels, probabilities).calibration_error == pytest.approx(
        (10 * 0.2 + 10 * 0.3) / 20, abs=1e-6
    )


@pytest.mark.parametrize(
    ("tops", "expected"),
    [((1.0, 0.9375), (1 - 0.0625) / 2), ((1.0, 0.93), (1 + 0.07) / 2)],
    ids=["one bin", "two bins"],
)
def test_gaps_cancel_within_the_last_of_15_bins_only(tops, expected):
    """The first row is wrong, the second right; the last bin is (14/15, 1]."""
    probabilities = np.array([[top, 1 - top] for top in tops], dtype=np.float32)
    assert scored(np.array([1, 0]), probabilities).calibration_error == pytest.approx(expected)


@pytest.mark.parametrize(("right", "expected"), [(True, 0.0), (False, 1.0)])
def test_calibration_error_of_certain_predictions(right, expected):
    labels = np.array([0, 1, 2])
    assert scored(labels, one_hot(labels if right else (labels + 1) % 3)).calibration_error == expected


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_probability_that_is_not_finite_names_its_row(bad):
    labels, probabilities = drawn(2)
    probabilities[17, 1] = bad
    for call in (scored, lambda y, p: paired(y, p, None), lambda y, p: worst_mistakes(y, p, CLASSES)):
        with pytest.raises(
            TrainingError, match=r"test row 17: .*not finite \(1 of 500 rows\).*training\.learning_rate"
        ):
            call(labels, probabilities)


def test_the_champions_probabilities_are_checked_too():
    labels, probabilities = drawn(2)
    with pytest.raises(TrainingError, match="test row 0: "):
        paired(labels, probabilities, np.full_like(probabilities, np.nan))


@pytest.mark.parametrize(
    ("labels", "probabilities", "message"),
    [
        (np.zeros(0, dtype=np.int64), np.zeros((0, 3)), "one or more integers"),
        (np.zeros((2, 1), dtype=np.int64), one_hot([0, 0]), "one or more integers"),
        (np.zeros(2), one_hot([0, 0]), "one or more integers"),
        (np.array([0, 1]), one_hot([0, 0, 0]), r"shape \(2, classes\), got \(3, 3\)"),
        (np.array([0, 1]), np.ones(2), "shape"),
        (np.array([0, 3]), one_hot([0, 0]), r"0\.\.2, got 0\.\.3"),
        (np.array([-1, 2]), one_hot([0, 0]), r"0\.\.2, got -1\.\.2"),
        (np.array([0, 1]), np.array([[1.0, 0, 0], [4.0, -1, 2]]), "test row 1: not a distribution"),
        (np.array([0, 1]), np.array([[1.5, -0.5, 0], [1.0, 0, 0]]), "test row 0: not a distribution"),
    ],
)
def test_impossible_input_is_refused(labels, probabilities, message):
    with pytest.raises(ValueError, match=message):
        scored(labels, probabilities, classes=CLASSES)


def test_class_names_must_fit_the_columns():
    with pytest.raises(ValueError, match="3 columns for 2 classes"):
        scored(np.array([0]), one_hot([0]), classes=("cat", "dog"))


def test_paired_counts_by_hand():
    labels = np.array([0, 0, 1, 1, 2, 2])
    candidate, champion = one_hot([0, 0, 0, 1, 1, 2]), one_hot([0, 1, 1, 1, 0, 0])
    assert paired(labels, candidate, champion) == Paired(
        both_right=2,
        only_candidate_right=2,
        only_champion_right=1,
        both_wrong=1,
        class_changes=((1, 0), (0, 1), (1, 0)),
    )


def test_without_a_champion_nothing_is_paired():
    assert paired(np.array([0]), one_hot([0]), None) == Paired()


def test_paired_refuses_models_of_different_classes():
    with pytest.raises(ValueError, match=r"\(1, 3\), the champion's \(1, 4\)"):
        paired(np.array([0]), one_hot([0]), one_hot([0], classes=4))


def test_paired_counts_are_fields_of_an_evaluation():
    labels, probabilities = drawn(3)
    pairs = paired(labels, probabilities, drawn(4)[1])
    ours = scored(labels, probabilities)
    evaluation = Evaluation(
        rows=500, candidate=ours, champion=ours, champion_version="1", predictions="", **pairs.model_dump()
    )
    assert Paired(**evaluation.model_dump(include=set(Paired.model_fields))) == pairs


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 60), classes=st.integers(2, 5))
def test_order_of_rows_and_of_models_does_not_matter(seed, rows, classes):
    labels, ours = drawn(seed, rows, classes)
    theirs = drawn(seed + 1, rows, classes)[1]
    mixed = np.random.default_rng(seed).permutation(rows)
    pairs, back = paired(labels, ours, theirs), paired(labels, theirs, ours)
    assert paired(labels[mixed], ours[mixed], theirs[mixed]) == pairs
    assert back.class_changes == tuple((lost, gained) for gained, lost in pairs.class_changes)
    assert (back.both_right, back.both_wrong) == (pairs.both_right, pairs.both_wrong)
    assert pairs.both_right + pairs.only_candidate_right == round(scored(labels, ours).accuracy * rows)
    ordered, other = scored(labels, ours), scored(labels[mixed], ours[mixed])
    assert (ordered.classes, ordered.confusion, ordered.low, ordered.high) == (
        other.classes,
        other.confusion,
        other.low,
        other.high,
    )
    assert ordered.log_loss == pytest.approx(other.log_loss)


def test_worst_mistakes_come_by_probability_then_by_row():
    labels = np.array([0, 0, 1, 1, 2])
    probabilities = np.array(
        [[0.25, 0.75, 0], [0.5, 0.25, 0.25], [0.75, 0, 0.25], [0, 0, 1], [0.5, 0.25, 0.25]], dtype=np.float32
    )
    mistakes = worst_mistakes(labels, probabilities, CLASSES)
    assert [(mistake.row, mistake.truth, mistake.predicted, mistake.probability) for mistake in mistakes] == [
        (3, "dog", "owl", 1.0),
        (0, "cat", "dog", 0.75),
        (2, "dog", "cat", 0.75),
        (4, "owl", "cat", 0.5),
    ]
    assert worst_mistakes(labels, probabilities, CLASSES, limit=2) == mistakes[:2]


def test_no_mistakes_when_all_is_right():
    labels = np.array([0, 1, 2])
    assert worst_mistakes(labels, one_hot(labels), CLASSES) == ()


def test_many_equal_mistakes_come_by_row():
    labels, top = np.zeros(500, dtype=np.int64), np.random.default_rng(5).choice([0.625, 0.75], size=500)
    mistakes = worst_mistakes(labels, np.stack([1 - top, top], axis=1).astype(np.float32), CLASSES, limit=500)
    expected = [*np.flatnonzero(top == 0.75), *np.flatnonzero(top == 0.625)]
    assert [mistake.row for mistake in mistakes] == expected


def test_scoring_imports_neither_scikit_learn_nor_scipy() -> None:
    code = (
        "import sys, numpy as np\n"
        "from training.problems.probabilities import score\n"
        "score(np.array([0, 1]), np.eye(2, dtype=np.float32), ('a', 'b'), 0.95, 1.0, 1.0)\n"
        "print(sorted({'scipy', 'sklearn'} & sys.modules.keys()))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
