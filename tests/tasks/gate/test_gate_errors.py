"""Error rates of the gate: its numbers compared with textbooks, its error rates with the stated ones."""

from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from looks import ALONE, judged
from scipy.stats import binom, norm

from tasks.gate.paired import difference_bound as bound_at
from tasks.gate.paired import holm, mcnemar
from training.problems.probabilities import paired, score
from training.records import Evaluation
from training.settings.schema import GateSettings

BETTER = GateSettings(**ALONE)
OVERALL_ONLY = {"max_class_drop": 1.0}


def difference_bound(gained, lost, rows, confidence):
    return bound_at(gained, lost, rows, float(norm.ppf(confidence)))


def passed(verdict, name):
    return next(rule.passed for rule in verdict.rules if rule.name == name)


@pytest.mark.parametrize(
    ("favourable", "opposite", "expected"),
    [(0, 0, 1.0), (1, 0, 0.5), (5, 0, 1 / 32), (4, 1, 6 / 32), (0, 5, 1.0), (8, 2, 56 / 1024)],
)
def test_mcnemar_by_hand(favourable, opposite, expected):
    assert mcnemar(favourable, opposite) == pytest.approx(expected, rel=1e-12)


def test_mcnemar_of_agrestis_voters():
    """150 against 86 (A. Agresti, Categorical Data Analysis, 10.1.1): two-sided exact p 3.716e-05."""
    assert 2 * mcnemar(150, 86) == pytest.approx(3.716e-05, rel=1e-4)
    assert mcnemar(150, 86) == pytest.approx(sum(comb(236, k) for k in range(150, 237)) / 2**236)


def test_bound_without_discordant_rows_has_a_closed_form():
    """0 and 0: rows*x - 1/2 = z sqrt(rows*x*(1-x)) for x = -bound, a quadratic equation."""
    rows, z2 = 1000, 1.6448536269514722**2
    root = np.roots([rows**2 + rows * z2, -(rows + rows * z2), 0.25]).max()
    assert difference_bound(0, 0, rows, 0.95) == pytest.approx(-root, rel=1e-9)


def test_bound_nears_walds_for_many_discordant_rows():
    rows, gained, lost = 1_000_000, 31_000, 30_000
    wald = (gained - lost) / rows - 1.6448536 * np.sqrt(gained + lost - (gained - lost) ** 2 / rows) / rows
    assert difference_bound(gained, lost, rows, 0.95) == pytest.approx(wald, abs=2e-6)


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_bound_at_the_extremes(rows):
    assert difference_bound(0, rows, rows, 0.95) == -1.0
    assert -1 < difference_bound(0, 0, rows, 0.95) < 0 < difference_bound(rows, 0, rows, 0.51) < 1


@settings(max_examples=100, deadline=None)
@given(gained=st.integers(0, 50), lost=st.integers(0, 50), same=st.integers(1, 500))
def test_bound_falls_with_lost_rows_and_with_confidence(gained, lost, same):
    rows = gained + lost + same
    bound = difference_bound(gained, lost, rows, 0.95)
    assert -1 <= bound < (gained - lost) / rows
    assert (
        difference_bound(gained, lost + 1, rows, 0.95)
        < bound
        < difference_bound(gained + 1, lost, rows, 0.95)
    )
    assert difference_bound(gained, lost, rows, 0.99) < bound


def test_holm_by_hand():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.9, 0.6]) == [1.0, 1.0]
    assert holm([]) == []


# --- error rates


def exact_error(rows, margin, gained_share, confidence):
    """Probability that the bound is above -margin although the true difference is exactly -margin."""
    lost_share = gained_share + margin
    total = 0.0
    for lost in range(int(binom.isf(1e-7, rows, lost_share)) + 1):
        most = int(binom.isf(1e-7, rows - lost, gained_share / (1 - lost_share)))
        passing = [g for g in range(most + 1) if difference_bound(g, lost, rows, confidence) > -margin]
        if passing:
            tail = binom.sf(passing[0] - 1, rows - lost, gained_share / (1 - lost_share))
            total += float(binom.pmf(lost, rows, lost_share) * tail)
    return total


@pytest.mark.extended
@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
@pytest.mark.parametrize("gained_share", [0.0, 0.005, 0.05])
@pytest.mark.parametrize(
    ("rows", "margin"), [(30, 0.1), (100, 0.05), (300, 0.02), (540, 0.005), (800, 0.005)]
)
def test_bound_errs_no_more_often_than_stated(rows, margin, gained_share, confidence):
    assert exact_error(rows, margin, gained_share, confidence) <= 1 - confidence


def four_classes(rows):
    """An evaluation of two models that are right on all `rows` rows of four equal classes."""
    labels = np.arange(rows) % 4
    certain = np.eye(4, dtype=np.float32)[labels]
    ours = score(labels, certain, ("a", "b", "c", "d"), 0.95, latency_ms=1.0, images_per_s=1000.0)
    pairs = paired(labels, certain, certain).model_dump()
    return Evaluation(rows=rows, candidate=ours, champion=ours, champion_version="1", predictions="", **pairs)


def simulated(rng, times, rows, gained, lost):
    """`times` evaluations of `rows` rows; `gained` and `lost` are the true probabilities of a row, per class."""
    base = four_classes(rows)
    share = np.array([[1 - g - d, g, d] for g, d in zip(gained, lost, strict=True)])
    for _ in range(times):
        drawn = rng.multinomial(rows // 4, share)
        same, up, down = drawn.sum(axis=0).tolist()
        changes = tuple((g, d) for _, g, d in drawn.tolist())
        names = ("both_right", "only_candidate_right", "only_champion_right", "class_changes")
        yield base.model_copy(update=dict(zip(names, (same, up, down, changes), strict=True)))


@pytest.mark.extended
@pytest.mark.parametrize(
    ("policy", "lost"),
    [
        (GateSettings(**ALONE, **OVERALL_ONLY), 0.05),
        (GateSettings(**ALONE, policy="not_worse", margin=0.02, **OVERALL_ONLY), 0.07),
    ],
    ids=["better", "not_worse"],
)
def test_a_candidate_at_the_boundary_is_promoted_no_more_often_than_stated(policy, lost):
    """There is no true difference for "better", and a true loss of exactly the margin for "not_worse"."""
    rng = np.random.default_rng(11)
    runs = [
        judged(evaluation, policy).promote
        for evaluation in simulated(rng, 1500, 1200, [0.05] * 4, [lost] * 4)
    ]
    assert 0.02 < np.mean(runs) <= 0.05


@pytest.mark.extended
@pytest.mark.parametrize(
    ("policy", "gained", "lost"),
    [(BETTER, 0.04, 0.02), (GateSettings(**ALONE, policy="not_worse", margin=0.01), 0.03, 0.03)],
    ids=["2 points better", "no difference"],
)
def test_a_true_difference_is_found(policy, gained, lost):
    """10,000 rows, of which 6 % are discordant."""
    rng = np.random.default_rng(12)
    runs = [
        judged(evaluation, policy).promote
        for evaluation in simulated(rng, 300, 10_000, [gained] * 4, [lost] * 4)
    ]
    assert np.mean(runs) > 0.8


@pytest.mark.extended
def test_class_rule_seldom_fires_without_a_true_drop():
    """Without any limit on the drop, only the significance test prevents a refusal because of noise."""
    rng = np.random.default_rng(13)
    policy = GateSettings(**ALONE, max_class_drop=0.0)
    fired = [
        not passed(judged(evaluation, policy), "class_drop")
        for evaluation in simulated(rng, 1500, 800, [0.1] * 4, [0.1] * 4)
    ]
    assert 0.005 < np.mean(fired) <= 0.05


def test_class_rule_finds_the_collapse_of_one_class_behind_a_gain_in_accuracy():
    rng = np.random.default_rng(14)
    for evaluation in simulated(rng, 200, 2000, [0.2, 0.2, 0.2, 0.02], [0.02, 0.02, 0.02, 0.3]):
        verdict = judged(evaluation, BETTER)
        assert passed(verdict, "better")
        assert not passed(verdict, "class_drop")
        assert not verdict.promote
