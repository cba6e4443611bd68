"""One look (comparison) of a reign: its test statistic, the boundary for passing, and the error level it spends.

A flip is a random assignment of signs to rows (:mod:`tasks.gate.signs`). The rule of `gate.error_control=joint`: the
boundary of look k is chosen so that flips that crossed a boundary in an earlier look, and flips that cross this
boundary, are together at most the share A(k) of all flips (:mod:`tasks.gate.spending`). A candidate passes when its
statistic is above the boundary, or when the exact test of this look alone passes at level A(k) - A(k-1). This is the
step-down procedure of P. Westfall and S. Young (Resampling-Based Multiple Testing, 1993) applied in time order, with
the level spent as in group-sequential tests. `strict` uses only the exact test, at an equal share of alpha per look.
"""

import logging
import math
from dataclasses import dataclass

import numpy as np

from tasks.gate.outcomes import Compared, Outcomes
from tasks.gate.reign import Flips, Reign, look_key, pack_flips
from tasks.gate.signs import FLIPS, LEAST_P, TIE, Differences, flipped_sums, size_of
from tasks.gate.spending import ROUNDING, joint_spent, strict_level
from training.records import Look, Question
from training.settings.schema import GateSettings

log = logging.getLogger("evergreen.gate")

_NO_FLIPS: Differences = np.zeros(0)
_MANY_ROWS = 500_000


@dataclass(frozen=True)
class Reference:
    """The version that the candidate is compared with: the champion, or the anchor of policy "not_worse".

    `identity` is the digest of the version's weights, `excess` the selection bias of its accuracy on these rows.
    `baseline` names the model that has learned nothing, if the reference is that model: then there is no version.
    """

    version: str | None
    identity: str
    excess: float = 0.0
    baseline: str = ""


def alpha_of(settings: GateSettings) -> float:
    """Error level of a whole reign: 1 - `gate.confidence`."""
    return round(1 - settings.confidence, 12)  # 0.05, not 0.050000000000000044


def key_of(question: Question, candidate: str, outcomes: Outcomes, settings: GateSettings) -> str:
    """Key of a look; equal for the same question about the same candidate and rows under the same settings."""
    margin = settings.margin if question == "not_worse" else None
    about = (settings.confidence, settings.error_control, settings.horizon, margin, outcomes.about)
    return look_key(question, candidate, outcomes.rows_digest(), *about)


def take_look(
    question: Question,
    candidate: str,
    reference: Reference,
    outcomes: Outcomes,
    reign: Reign,
    settings: GateSettings,
) -> tuple[Look, Reign]:
    """Compare the candidate with the reference; returns the look, and the reign's state after it.

    `candidate` is the digest of the candidate's weights, `reign` the state before the look.
    """
    key = key_of(question, candidate, outcomes, settings)
    compared = outcomes.compared(question, settings.margin)
    joint = settings.error_control == "joint" and not compared.few_rows
    flips = _NO_FLIPS
    if joint or compared.uses_flips:
        if (rows := np.count_nonzero(compared.differences)) > _MANY_ROWS:
            log.info("comparing %d rows under %d random signs each, which takes minutes", rows, FLIPS)
        flips = flipped_sums(reference.identity, compared.digests, compared.differences)
    p, statistic = compared.test(flips)
    spending = (
        spend_jointly(reign, flips, compared.differences, settings)
        if joint
        else spend_strictly(reign, settings)
    )
    above = spending.boundary is not None and statistic > spending.boundary + TIE
    shown = above or 0 < spending.level >= p  # a p value below 1e-308 is 0
    passed = shown and compared.second_p <= alpha_of(settings)
    if question == "unless_worse":  # a candidate does not pass because no result could show that it is worse
        passed = not shown and (spending.boundary is not None or spending.level >= _least(compared))
    look = Look(
        question=question,
        measure=compared.measure,
        reference_version=reference.version,
        reference_excess=reference.excess,
        key=key,
        number=reign.looks + 1,
        error_control="joint" if joint else "strict",
        alpha=alpha_of(settings),
        horizon=settings.horizon,
        margin=settings.margin if question == "not_worse" else 0.0,
        rows=len(outcomes),
        rows_digest=outcomes.rows_digest(),
        gained=compared.gained,
        lost=compared.lost,
        reference_wrong=compared.reference_wrong,
        difference=compared.difference,
        statistic=statistic,
        p=p,
        boundary=spending.boundary,
        level=spending.level,
        spent=spending.spent,
        crossed=pack_flips(spending.crossed),
        passed=passed,
        reference_error=compared.reference_error,
        standard_error=compared.standard_error,
        baseline=reference.baseline,
    )
    return look, reign.after(look)


def _least(compared: Compared) -> float:
    """Smallest p-value that the test can show."""
    return LEAST_P if compared.uses_flips else math.ulp(0.0)


@dataclass(frozen=True)
class Spending:
    """What a look may spend, and the level spent with it.

    `boundary` is in standard deviations (None: no boundary left), `level` is for the exact test of this look alone,
    `spent` is the level of the reign spent including this look, `crossed` has the numbers of the flips it spends.
    """

    boundary: float | None
    level: float
    spent: float
    crossed: Flips


def spend_jointly(
    reign: Reign, sums: Differences, differences: Differences, settings: GateSettings
) -> Spending:
    """Boundary and level of the reign's next look, from the flipped sums (`sums`) of its row differences."""
    from scipy.stats import norm

    alpha, horizon, number = alpha_of(settings), settings.horizon, reign.looks + 1
    before, now = (
        max(0.0, joint_spent(looks, alpha, horizon) - reign.strict_spent) for looks in (number - 1, number)
    )
    spent = max(joint_spent(number, alpha, horizon), reign.strict_spent)
    allowed = math.floor(now * (FLIPS + 1)) - int(reign.crossed.sum())
    if allowed < 1:
        return Spending(None, now - before, spent, np.empty(0, np.intp))
    size = size_of(differences)
    uncrossed = np.flatnonzero(~reign.crossed)
    scores = sums[uncrossed] / size if size else np.zeros(len(uncrossed))
    # The allowed-th largest score, not the next smaller score, with which the error rate of 0.05 becomes 0.08.
    highest = float(np.partition(scores, -allowed)[-allowed])
    crossing = scores >= highest - TIE
    if crossing.sum() > allowed:  # tied flips exceed the allowed number
        crossing = scores > highest + TIE
    # When few rows differ, the flips may not give a lower boundary than the normal distribution.
    boundary = max(highest, float(norm.isf(now)))
    return Spending(boundary, now - before, spent, uncrossed[crossing])


def spend_strictly(reign: Reign, settings: GateSettings) -> Spending:
    """Level of the reign's next look: an equal share of what strict and joint looks have not spent; no boundary."""
    before = reign.strict_spent + _jointly_spent(reign, settings)
    level = strict_level(reign.looks, before, alpha_of(settings), settings.horizon)
    return Spending(None, level, before + level, np.empty(0, np.intp))


def _jointly_spent(reign: Reign, settings: GateSettings) -> float:
    """Level that the reign's joint looks have spent; an upper bound if its state does not have this level.

    Such a state was written by an earlier version of Evergreen. If no flip crossed and the strict levels are equal
    shares for all looks, all looks were strict. Otherwise all looks count as joint.
    """
    if reign.joint_spent is not None:
        return reign.joint_spent
    alpha, horizon = alpha_of(settings), settings.horizon
    all_strict = reign.strict_spent >= alpha * reign.looks / horizon - ROUNDING
    return 0.0 if all_strict and not reign.crossed.any() else joint_spent(reign.looks, alpha, horizon)
