"""One comparison of a reign: its statistic, the boundary that it has to pass, and what it spends.

The rule of `gate.error_control=joint`: at look k, the flips that have crossed a boundary so far and those that would
cross now are together at most the share A(k) of all (:mod:`tasks.gate.spending`). A candidate passes when its own
statistic is above that boundary, or when the exact test of this look alone passes at A(k) - A(k-1). This is the step-
down of P. Westfall and S. Young (Resampling-Based Multiple Testing, 1993) taken in the order of time, with the level
spent as in group-sequential tests. `strict` asks the exact test for an equal share of alpha at each look.
"""

import math
from dataclasses import dataclass

import numpy as np

from tasks.gate.outcomes import Outcomes
from tasks.gate.paired import margin_score, mcnemar
from tasks.gate.reign import Flips, Reign, look_key, pack_flips
from tasks.gate.signs import FLIPS, Differences, flipped_sums
from tasks.gate.spending import joint_spent, strict_level
from training.records import Look, Measure, Question
from training.settings.schema import GateSettings

_NO_FLIPS: Differences = np.zeros(0)


@dataclass(frozen=True)
class Reference:
    """Whom the candidate is compared with: the champion, or the anchor of policy "not_worse".

    `identity` is the digest of its weights, `excess` what having been chosen adds to its accuracy on these rows.
    """

    version: str | None
    identity: str
    excess: float = 0.0


def alpha_of(settings: GateSettings) -> float:
    """The probability that may be spent over a reign."""
    return round(1 - settings.confidence, 12)  # 0.05, not 0.050000000000000044


def key_of(question: Question, candidate: str, rows_digest: str, settings: GateSettings) -> str:
    """The key of a look: the same question about the same candidate and rows under the same settings."""
    margin = settings.margin if question == "not_worse" else None
    about = (settings.confidence, settings.error_control, settings.horizon, margin)
    return look_key(question, candidate, rows_digest, *about)


def measure_of(question: Question, outcomes: Outcomes) -> Measure:
    """Accuracy, or log loss where accuracy can't tell: "better" between two models without a mistake."""
    perfect = bool(outcomes.candidate.all() and outcomes.reference.all())
    return "log_loss" if question == "better" and perfect else "accuracy"


def take_look(
    question: Question,
    candidate: str,
    reference: Reference,
    outcomes: Outcomes,
    reign: Reign,
    settings: GateSettings,
) -> tuple[Look, Reign]:
    """Compare, and spend. `candidate` is the digest of its weights, `reign` the state before."""
    measure, rows_digest = measure_of(question, outcomes), outcomes.rows_digest()
    key = key_of(question, candidate, rows_digest, settings)
    differences = _differences(question, measure, outcomes, settings.margin)
    joint = settings.error_control == "joint"
    flips = _NO_FLIPS
    if joint or measure == "log_loss":
        flips = flipped_sums(reference.identity, outcomes.digests, differences)
    p, statistic = _single_test(question, measure, outcomes, differences, flips, settings.margin)
    spending = (
        spend_jointly(reign, flips, differences, settings) if joint else spend_strictly(reign, settings)
    )
    passed = p <= spending.level or (spending.boundary is not None and statistic > spending.boundary)
    gained, lost = _favourable(measure, outcomes, differences)
    if measure == "log_loss":  # a mean can be lower by a few rows: most rows have to agree
        passed = passed and mcnemar(gained, lost) <= alpha_of(settings)
    look = Look(
        question=question,
        measure=measure,
        reference_version=reference.version,
        reference_excess=reference.excess,
        key=key,
        number=reign.looks + 1,
        error_control=settings.error_control,
        alpha=alpha_of(settings),
        horizon=settings.horizon,
        margin=settings.margin if question == "not_worse" else 0.0,
        rows=len(outcomes),
        rows_digest=rows_digest,
        gained=gained,
        lost=lost,
        reference_wrong=int((~outcomes.reference).sum()),
        difference=float(_mean_difference(measure, outcomes)),
        statistic=statistic,
        p=p,
        boundary=spending.boundary,
        level=spending.level,
        spent=spending.spent,
        crossed=pack_flips(spending.crossed),
        passed=passed,
    )
    return look, reign.with_look(key, spending.crossed, 0.0 if joint else spending.level)


@dataclass(frozen=True)
class Spending:
    """What a look may spend: `boundary` in standard deviations over all looks, `level` for the test of this look."""

    boundary: float | None
    level: float
    spent: float
    crossed: Flips


def spend_jointly(
    reign: Reign, sums: Differences, differences: Differences, settings: GateSettings
) -> Spending:
    """The boundary of the next look, given the flipped sums of its differences."""
    from scipy.stats import norm

    alpha, horizon, number = alpha_of(settings), settings.horizon, reign.looks + 1
    before, now = (
        max(0.0, joint_spent(looks, alpha, horizon) - reign.strict_spent) for looks in (number - 1, number)
    )
    spent = joint_spent(number, alpha, horizon)
    allowed = math.floor(now * (FLIPS + 1)) - int(reign.crossed.sum())
    if allowed < 1:
        return Spending(None, now - before, spent, np.empty(0, np.intp))
    size = float(np.sqrt(np.square(differences).sum()))
    uncrossed = np.flatnonzero(~reign.crossed)
    scores = sums[uncrossed] / size if size else np.zeros(len(uncrossed))
    # The allowed-th largest, not the one after it: with that one the error rate of 0.05 becomes 0.08.
    highest = float(np.partition(scores, -allowed)[-allowed])
    crossing = scores >= highest
    if crossing.sum() > allowed:  # a tie that does not fit
        crossing = scores > highest
    # No flip says more than the normal distribution when few rows differ.
    boundary = max(highest, float(norm.isf(now)))
    return Spending(boundary, now - before, spent, uncrossed[crossing])


def spend_strictly(reign: Reign, settings: GateSettings) -> Spending:
    alpha, horizon = alpha_of(settings), settings.horizon
    before = reign.strict_spent + (joint_spent(reign.looks, alpha, horizon) if reign.crossed.any() else 0.0)
    level = strict_level(reign.looks, before, alpha, horizon)
    return Spending(None, level, before + level, np.empty(0, np.intp))


def _differences(question: Question, measure: Measure, outcomes: Outcomes, margin: float) -> Differences:
    """By row, what speaks for the candidate. Under "not_worse" the margin is added to the rows that differ."""
    if measure == "log_loss":
        return outcomes.reference_loss - outcomes.candidate_loss
    differences = outcomes.candidate.astype(np.float64) - outcomes.reference
    return np.where(differences, differences + margin, 0.0) if question == "not_worse" else differences


def _single_test(
    question: Question,
    measure: Measure,
    outcomes: Outcomes,
    differences: Differences,
    flips: Differences,
    margin: float,
) -> tuple[float, float]:
    """(p, statistic): the p-value of this look alone, and the statistic in standard deviations."""
    from scipy.stats import norm

    if question == "not_worse":
        score = margin_score(outcomes.gained, outcomes.lost, len(outcomes), margin)
        return float(norm.sf(score)), score
    total, size = float(differences.sum()), float(np.sqrt(np.square(differences).sum()))
    statistic = total / size if size else 0.0
    if measure == "log_loss":
        return float((1 + (flips >= total).sum()) / (FLIPS + 1)), statistic
    return mcnemar(outcomes.gained, outcomes.lost), statistic


def _favourable(measure: Measure, outcomes: Outcomes, differences: Differences) -> tuple[int, int]:
    """Rows that speak for the candidate, and for the reference."""
    if measure == "log_loss":
        return int((differences > 0).sum()), int((differences < 0).sum())
    return outcomes.gained, outcomes.lost


def _mean_difference(measure: Measure, outcomes: Outcomes) -> float:
    if measure == "log_loss":
        return float((outcomes.reference_loss - outcomes.candidate_loss).mean())
    return (outcomes.gained - outcomes.lost) / len(outcomes)
