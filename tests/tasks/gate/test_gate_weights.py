"""The gate on rows with weights: a weight of 2 counts as the same row twice."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tasks.gate.look import Reference, take_look
from tasks.gate.measures import measure_of
from tasks.gate.outcomes import gate_of, sign_flip_test
from tasks.gate.reign import Reign
from tasks.gate.rules import better_rule, not_worse_rule
from tasks.gate.signs import flipped_sums
from training.problems.probabilities import score as classifier_score
from training.problems.regression import score as regression_score
from training.records import ProblemName
from training.settings.schema import GateSettings
from training.trainers.row_weights import scaled

ROWS = 400
RANDOM = np.random.default_rng(0)
TIMES = RANDOM.integers(0, 4, ROWS)
LABELS = RANDOM.integers(0, 2, ROWS)
PRICES = RANDOM.normal(size=ROWS)
PROBLEMS: tuple[ProblemName, ...] = ("classification", "regression")
CLASSES = ("a", "b")


def probabilities(right: float, seed: int) -> np.ndarray:
    """Of a model that is right on about the share `right` of the rows."""
    random = np.random.default_rng(seed)
    hit = random.random(ROWS) < right
    of_truth = np.where(hit, random.uniform(0.55, 0.95, ROWS), random.uniform(0.05, 0.45, ROWS))
    return np.where(np.arange(2) == LABELS[:, None], of_truth[:, None], 1 - of_truth[:, None]).astype(
        np.float32
    )


def rows_of(problem: ProblemName, weighted: bool, better: float = 0.12) -> pa.Table:
    """The compared rows of a candidate that is better by about `better`; repeated, or with weights."""
    columns: dict[str, Any] = {"digest": np.arange(ROWS).astype(np.uint64)}
    if problem == "classification":
        columns["label"] = LABELS
        for name, share, seed in (("candidate", 0.7 + better, 1), ("champion", 0.7, 2)):
            given = probabilities(share, seed)
            columns |= {name: given.argmax(1), f"{name}_probability": given[np.arange(ROWS), LABELS]}
    else:
        columns["label"] = PRICES
        for name, spread, seed in (("candidate", 1 - better, 1), ("champion", 1, 2)):
            columns[name] = PRICES + spread * np.random.default_rng(seed).normal(size=ROWS)
    table = pa.table(columns)
    if weighted:
        return table.append_column("weight", pa.array(scaled(TIMES.astype(float))))
    return table.take(pa.array(np.repeat(np.arange(ROWS), TIMES)))


def look_at(problem: ProblemName, rows: pa.Table, policy: Any = "better", reign: Reign | None = None) -> Any:
    settings = GateSettings(policy=policy, margin=0.05)
    outcomes = gate_of(problem).outcomes(rows, "champion")
    reference = Reference("7", "weights of the champion")
    return take_look(policy, "candidate", reference, outcomes, reign or Reign(), settings)[0]


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("question", ["better", "not_worse"])
def test_the_difference_is_that_of_the_rows_so_often(problem: ProblemName, question: Any) -> None:
    weighted, repeated = (
        gate_of(problem).outcomes(rows_of(problem, one), "champion").compared(question, 0.05)
        for one in (True, False)
    )
    assert weighted.difference == pytest.approx(repeated.difference, rel=1e-12)
    assert weighted.difference != 0
    if problem == "regression":
        assert weighted.reference_error == pytest.approx(repeated.reference_error, rel=1e-12)


@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_sign_flip_turns_a_row_with_all_its_weight(problem: ProblemName) -> None:
    """Repeated rows have one digest, so they are flipped together: the p-values are equal."""
    values = []
    for weighted in (True, False):
        compared = (
            gate_of(problem).outcomes(rows_of(problem, weighted, 0.04), "champion").compared("better", 0.0)
        )
        flips = flipped_sums("reference", compared.digests, compared.differences)
        values.append(sign_flip_test(flips, compared.differences)[0])
    assert values[0] == pytest.approx(values[1], rel=1e-12)
    assert 0.001 < values[0] < 0.5


@pytest.mark.parametrize("problem", PROBLEMS)
def test_weights_can_turn_the_decision(problem: ProblemName) -> None:
    """The candidate is better on most rows, and worse on those that count."""
    rows = rows_of(problem, weighted=False, better=0.2 if problem == "classification" else 0.5)
    outcomes = gate_of(problem).outcomes(rows, "champion").compared("better", 0.0)
    assert outcomes.difference > 0
    flipped = np.where(outcomes.differences < 0, 50.0, 1.0)
    if len(flipped) != rows.num_rows:  # of a regression, one difference a digest
        once = dict(zip(outcomes.digests.tolist(), flipped.tolist(), strict=True))
        flipped = np.array([once[digest] for digest in rows["digest"].to_pylist()])
    heavy = rows.append_column("weight", pa.array(scaled(flipped)))
    assert gate_of(problem).outcomes(heavy, "champion").compared("better", 0.0).difference < 0
    assert look_at(problem, rows).passed
    assert not look_at(problem, heavy).passed


@pytest.mark.parametrize("problem", PROBLEMS)
def test_looks_say_weighted_values_and_are_computed_again(problem: ProblemName) -> None:
    rows = rows_of(problem, weighted=True)
    columns = {name: rows[name].to_numpy() for name in rows.column_names}
    for policy, rule in (("better", better_rule), ("not_worse", not_worse_rule)):
        look = look_at(problem, rows, policy)
        for recorded, again in (
            measure_of(look).recounted(look, columns["label"], columns, "champion").values()
        ):
            assert recorded == pytest.approx(again, rel=1e-12)
        text = rule(look).explanation
        assert "weighted accuracy" in text or problem == "regression"
    other = rows_of(problem, weighted=False)
    assert look_at(problem, rows).rows_digest != look_at(problem, other).rows_digest


def test_equal_weights_are_as_no_weights() -> None:
    plain = rows_of("classification", weighted=False)
    equal = plain.append_column("weight", pa.array(np.ones(plain.num_rows)))
    looks = [look_at("classification", rows, "not_worse") for rows in (plain, equal)]
    assert looks[0].p == pytest.approx(looks[1].p, rel=1e-9)
    assert looks[0].statistic == pytest.approx(looks[1].statistic, rel=1e-9)
    assert looks[0].difference == pytest.approx(looks[1].difference)
    assert [look.measure for look in looks] == ["accuracy", "weighted_accuracy"]


@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_a_worse_model_seldom_passes_as_not_worse(spread: float) -> None:
    """Of models that are worse by exactly the margin, at most about the nominal 5 % pass by the p-value."""
    random, passed, nights = np.random.default_rng(5), 0, 400
    for _ in range(nights):
        truth = random.random(300)
        weights = scaled(random.lognormal(0, spread, 300))
        rows = pa.table(
            {
                "digest": np.arange(300).astype(np.uint64),
                "label": np.zeros(300, np.int64),
                "candidate": (truth < 0.2).astype(np.int64),
                "champion": ((truth < 0.1) | (truth > 0.95)).astype(np.int64),
                "candidate_probability": np.full(300, 0.5),
                "champion_probability": np.full(300, 0.5),
                "weight": weights,
            }
        )
        compared = gate_of("classification").outcomes(rows, "champion").compared("not_worse", 0.05)
        passed += compared.test(np.empty(0))[0] <= 0.05
    assert 0 < passed <= 0.05 * nights + 2.6 * (0.05 * 0.95 * nights) ** 0.5


def repeated(values: np.ndarray | Sequence[float]) -> np.ndarray:
    return np.repeat(np.asarray(values), TIMES, axis=0)


def test_scores_of_a_classifier_are_those_of_the_rows_so_often() -> None:
    given = probabilities(0.8, 3)
    weighted = classifier_score(LABELS, given, CLASSES, 0.95, 1.0, 1.0, scaled(TIMES.astype(float)))
    often = classifier_score(repeated(LABELS), repeated(given), CLASSES, 0.95, 1.0, 1.0)
    for name in ("accuracy", "log_loss", "macro_f1", "calibration_error"):
        assert getattr(weighted, name) == pytest.approx(getattr(often, name), rel=1e-9), name
    for ours, theirs in zip(weighted.classes, often.classes, strict=True):
        assert (ours.precision, ours.recall) == pytest.approx((theirs.precision, theirs.recall))
    assert sum(map(sum, weighted.confusion)) == ROWS  # counts of rows
    plain = classifier_score(LABELS, given, CLASSES, 0.95, 1.0, 1.0)
    assert weighted.high - weighted.low > plain.high - plain.low  # fewer rows count
    equal = classifier_score(LABELS, given, CLASSES, 0.95, 1.0, 1.0, np.ones(ROWS))
    assert equal == plain


def test_scores_of_a_regression_are_those_of_the_rows_so_often() -> None:
    given = (PRICES + RANDOM.normal(size=ROWS)).astype(np.float32)
    weighted = regression_score(PRICES, given, 0.95, 1.0, 1.0, scaled(TIMES.astype(float)))
    often = regression_score(repeated(PRICES), repeated(given), 0.95, 1.0, 1.0)
    for name in ("rmse", "mae", "r2", "bias"):
        assert getattr(weighted, name) == pytest.approx(getattr(often, name), rel=1e-9), name
    assert weighted.median_error == pytest.approx(often.median_error, rel=0.02)
    assert weighted.low < weighted.rmse < weighted.high
