"""A first champion has to be better than a model that has learned nothing."""

import numpy as np
import pyarrow as pa
import pytest
from looks import evaluate
from small_tables import described, values

from tasks.gate import asks_for_baseline, judge
from tasks.gate.baseline import baseline_look
from tasks.gate.outcomes import gate_of
from training.problems import problem_named
from training.problems.regression import score as score_numbers
from training.records import Evaluation, Verdict
from training.settings.schema import GateSettings

ALWAYS = "always answering 'class 0'"


def judged(evaluation: Evaluation, columns: dict[str, np.ndarray], **settings: object) -> Verdict:
    """The verdict on a first candidate; `columns` are those of `predictions.parquet`."""
    gate = GateSettings.model_validate(settings)
    digests = np.arange(evaluation.rows, dtype=np.uint64)
    rows = pa.table(columns | {"digest": digests})
    looks = ()
    if asks_for_baseline(evaluation, gate):
        outcomes = gate_of(evaluation.candidate.problem).outcomes(rows, "baseline")
        looks = (baseline_look(evaluation, "weights", outcomes, gate),)
    return judge(evaluation, gate, looks)


def classes(labels: np.ndarray, predicted: np.ndarray, **settings: object) -> Verdict:
    """A first classifier of two classes, the first of which is the commonest."""
    evaluation = evaluate(labels, predicted, None).model_copy(update={"baseline": ALWAYS})
    columns = {
        "label": labels,
        "candidate": predicted,
        "candidate_probability": (predicted == labels).astype(np.float32),
        "baseline": np.zeros_like(labels),
        "baseline_probability": np.where(labels == 0, 0.9, 0.1).astype(np.float32),
    }
    return judged(evaluation, columns, **settings)


def numbers(targets: np.ndarray, predicted: np.ndarray, mean: float) -> Verdict:
    """A first regression."""
    evaluation = Evaluation(
        rows=len(targets),
        candidate=score_numbers(targets, predicted.astype(np.float32), 0.95, 1.0, 1.0),
        champion=None,
        champion_version=None,
        predictions="predictions.parquet",
        baseline=f"always answering the mean {mean:g}",
    )
    columns = {"label": targets, "candidate": predicted, "baseline": np.full(len(targets), mean)}
    return judged(evaluation, columns)


def test_a_model_that_always_gives_the_commonest_class_is_refused() -> None:
    labels = np.repeat([0, 1], [1979, 21])
    verdict = classes(labels, np.zeros_like(labels), floor=0.95)
    assert not verdict.promote
    assert verdict.summary == (
        "Not promoted: accuracy 98.95 % on 2,000 rows, no better than always answering 'class 0' (98.95 %)"
    )
    rule = verdict.rules[1]
    assert (rule.name, rule.passed, rule.value, rule.limit) == ("baseline", False, 1.0, 0.05)
    assert (
        "the candidate alone is right on 0 rows, the baseline alone on 0, p = 1, at most 0.05 is needed"
        in rule.explanation
    )
    assert rule.explanation.endswith("gate.baseline=false switches this rule off")
    assert verdict.choice is None


def test_a_model_worse_than_the_commonest_class_is_refused() -> None:
    labels = np.repeat([0, 1], [550, 450])
    verdict = classes(labels, np.where(np.arange(1000) % 2, labels, 1 - labels))
    assert not verdict.promote
    assert (
        "accuracy 50.00 % on 1,000 rows, no better than always answering 'class 0' (55.00 %)"
        in verdict.summary
    )


def test_a_gain_that_may_be_chance_is_refused_and_the_rows_that_could_show_it_are_named() -> None:
    labels = np.repeat([0, 1], [150, 50])
    predicted = np.zeros_like(labels)
    predicted[-6:] = 1
    predicted[:4] = 1
    verdict = classes(labels, predicted)
    assert not verdict.promote
    assert "not shown to be better than always answering 'class 0' (75.00 %)" in verdict.summary
    assert "a true gain of 1.00 points would pass on about" in verdict.rules[1].explanation


def test_a_model_that_learned_something_is_promoted() -> None:
    labels = np.repeat([0, 1], [150, 50])
    predicted = np.where(np.arange(200) >= 180, 1, 0)
    verdict = classes(labels, predicted)
    assert verdict.promote
    assert verdict.summary == (
        "Promoted as first champion: accuracy 85.00 % on 200 rows, better than always answering 'class 0' (75.00 %)"
    )
    assert [rule.name for rule in verdict.rules] == ["floor", "baseline"]
    assert Verdict.model_validate_json(verdict.model_dump_json()) == verdict


@pytest.mark.parametrize(("won", "promoted"), [(4, False), (5, True)])
def test_mcnemars_exact_test_decides(won: int, promoted: bool) -> None:
    """5 rows that only the candidate gets right: p = 1/32."""
    labels = np.repeat([0, 1], [90, 10])
    assert classes(labels, np.where(np.arange(100) >= 100 - won, 1, 0)).promote is promoted


def test_too_few_rows_to_show_anything_are_said() -> None:
    labels = np.repeat([0, 1], [3, 2])
    verdict = classes(labels, labels)
    assert not verdict.promote
    assert (
        "more than correcting the baseline's 2 mistakes would give: test on more rows"
        in verdict.rules[1].explanation
    )


def test_a_test_set_of_one_class_shows_nothing() -> None:
    labels = np.zeros(300, np.int64)
    assert not classes(labels, labels).promote


def test_the_rule_can_be_switched_off() -> None:
    labels = np.repeat([0, 1], [1979, 21])
    verdict = classes(labels, np.zeros_like(labels), baseline=False)
    assert verdict.promote
    assert [rule.name for rule in verdict.rules] == ["floor"]


def test_a_candidate_below_the_floor_is_not_compared() -> None:
    labels = np.repeat([0, 1], [50, 50])
    verdict = classes(labels, np.zeros_like(labels), floor=0.9)
    assert [rule.name for rule in verdict.rules] == ["floor"]


def test_a_regression_is_compared_with_the_mean() -> None:
    rng = np.random.default_rng(0)
    targets = rng.normal(10, 2, 400)
    good = numbers(targets, targets + rng.normal(0, 1, 400), 10.0)
    assert good.promote
    assert "better than always answering the mean 10 (" in good.summary
    noise = numbers(targets, targets.mean() + 0.001 * (targets - targets.mean()), 10.0)
    assert not noise.promote
    assert "than always answering the mean 10 (" in noise.summary


def test_a_year_of_first_candidates_that_learned_nothing_seldom_passes() -> None:
    """Each candidate guesses at random as the classes are distributed; the level of one comparison is 5 %."""
    rng = np.random.default_rng(1)
    passed = 0
    for _ in range(300):
        labels = (rng.random(400) < 0.5).astype(np.int64)
        passed += classes(labels, (rng.random(400) < 0.5).astype(np.int64)).promote
    assert passed <= 27  # binomial(300, 0.05): more with a probability below 0.1 %


def test_the_baseline_of_each_problem() -> None:
    table = described(values(), np.zeros(40, np.int64)).model_copy(
        update={"label_counts": {"train": (10, 30), "test": (5, 5)}}
    )
    shares = problem_named("classification").baseline(table, lambda: np.zeros(0), 3, None)
    assert shares is not None
    assert shares.words == "always answering 'b'"
    assert shares.predictions.tolist() == [[0.25, 0.75]] * 3
    targets = np.array([1.0, 2.0, 9.0, 4.0])
    mean = problem_named("regression").baseline(described(values(4), targets), lambda: targets, 2, None)
    assert mean is not None
    assert (mean.words, mean.predictions.tolist()) == ("always answering the mean 4", [4.0, 4.0])
    noise = problem_named("denoising").baseline(table, lambda: np.zeros(0), 2, None)
    assert noise is not None
    assert noise.predictions.tolist() == [[1.0, 1.0]] * 2
    assert problem_named("language_model").baseline(table, lambda: np.zeros(0), 2, None) is None
