"""Simulated reigns under each metric of `gate.metric`: one champion, and a candidate each night on the same rows.

A model of two classes sees each row's class with normal noise. A part of the noise belongs to the row and is shared by
all models, so that they make similar mistakes; the rest is drawn anew for each model. Its probabilities are calibrated.
A model of numbers is off by noise of Student's distribution, in the same two parts. All models with the same `skill`
are equally good in truth.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from tasks.gate.look import Spending, spend_jointly, spend_strictly
from tasks.gate.outcomes import sign_flip_test
from tasks.gate.reign import Reign, pack_flips
from tasks.gate.signs import FLIPS, TIE
from tasks.problems.row_numbers import FEW_ROWS
from training.problems.row_metrics import CLASS_METRICS, ROW_METRICS, ClassRows, rarest
from training.problems.skewed_means import Numbers
from training.records import GateMetric, Look
from training.settings.schema import GateSettings

_CLASSES = ("no", "yes")
_COSTS = ((0.0, 1.0), (5.0, 0.0))
_SHARED = 0.8  # part of the noise that all models share
_TAILS = 5  # degrees of freedom of the noise of numbers
_TRUTH_ROWS = 200_000


@dataclass(frozen=True)
class MetricWorld:
    """Test rows of two classes, of which `share` are of class "yes"; or of numbers, if the metric is one of numbers."""

    metric: str
    rows: int
    share: float = 0.3
    skill: float = 1.8

    @property
    def described(self) -> GateMetric:
        return GateMetric(name=self.metric, why="-", positive="yes", quantile=0.9, costs=_COSTS)

    def test_set(self, rng: np.random.Generator, rows: int | None = None) -> tuple[Numbers, Numbers]:
        """Targets (classes 0 and 1, or numbers), and the part of the noise that belongs to the rows."""
        count = rows or self.rows
        if self.metric in CLASS_METRICS:
            return (rng.random(count) < self.share).astype(np.float64), rng.normal(size=count)
        return rng.normal(size=count), rng.standard_t(_TAILS, size=count)

    def numbers(self, targets: Numbers, shared: Numbers, skill: float, rng: np.random.Generator) -> Numbers:
        """The numbers of the rows of one model with this skill."""
        is_class = self.metric in CLASS_METRICS
        own = rng.normal(size=len(targets)) if is_class else rng.standard_t(_TAILS, size=len(targets))
        noise = np.sqrt(_SHARED) * shared + np.sqrt(1 - _SHARED) * own
        metric = ROW_METRICS[self.metric]
        if not is_class:
            return metric.numbers(self.described, (targets, targets + noise / skill))
        seen = skill * targets + noise
        logit = np.log(self.share / (1 - self.share)) + skill * seen - skill**2 / 2
        chance = 1 / (1 + np.exp(-logit))
        labels = targets.astype(np.int64)
        rows = ClassRows(labels, (chance > 0.5).astype(np.int64), np.stack([1 - chance, chance], 1), _CLASSES)
        return metric.numbers(self.described, rows)

    def truth(self, skill: float) -> float:
        """The metric of a model with this skill on many rows."""
        rng = np.random.default_rng(0)  # the same rows for each skill
        targets, shared = self.test_set(rng, _TRUTH_ROWS)
        return float(self.numbers(targets, shared, skill, rng).mean())

    def skill_for(self, gain: float) -> float:
        """The skill with which the metric is better by `gain`: in points or, of a loss, as a share of it."""
        metric, base = ROW_METRICS[self.metric], self.truth(self.skill)
        wanted = base + gain if metric.is_share else base * (1 - gain)
        low, high = self.skill / 4, 3 * self.skill
        for _ in range(14):
            middle = (low + high) / 2
            value = self.truth(middle)
            enough = value >= wanted if metric.greater_is_better else value <= wanted
            low, high = (low, middle) if enough else (middle, high)
        return high


Event = Literal["better", "unless_worse"]


def first_event(
    world: MetricWorld, skill: float, nights: int, event: Event, rng: np.random.Generator
) -> int | None:
    """The first night (from 1) on which a candidate of this skill is shown to be better than the champion.

    With event "unless_worse", on which the champion is shown to be better. None if it is on no night.
    """
    targets, shared = world.test_set(rng)
    champion = world.numbers(targets, shared, world.skill, rng)
    sign = 1.0 if ROW_METRICS[world.metric].greater_is_better else -1.0
    side = sign if event == "better" else -sign
    candidates = [world.numbers(targets, shared, skill, rng) for _ in range(nights)]
    differences = side * (np.array(candidates) - champion)
    signs = np.unpackbits(rng.integers(0, 256, (world.rows, FLIPS // 8), dtype=np.uint8), axis=1)
    # In double precision, as the gate's own: equal sums must not differ by rounding, or ties would pass.
    sums = differences @ (signs.astype(np.float64) * 2 - 1)
    few = ROW_METRICS[world.metric].by_class and rarest(targets) < FEW_ROWS
    reign, settings = Reign(), GateSettings()
    for night, (row, flips) in enumerate(zip(differences, sums, strict=True), start=1):
        p, statistic = sign_flip_test(flips, row)
        spending = spend_strictly(reign, settings) if few else spend_jointly(reign, flips, row, settings)
        if p <= spending.level or (spending.boundary is not None and statistic > spending.boundary + TIE):
            return night
        control: Literal["joint", "strict"] = "strict" if few else "joint"
        reign = reign.after(_look(night, control, spending))
    return None


def _look(number: int, control: Literal["joint", "strict"], spending: Spending) -> Look:
    """What a reign keeps of a comparison."""
    return Look(
        question="better",
        measure="-",
        reference_version="1",
        key=f"{number:012x}",
        number=number,
        error_control=control,
        alpha=0.05,
        horizon=365,
        margin=0.0,
        rows=1,
        rows_digest="",
        gained=0,
        lost=0,
        reference_wrong=0,
        difference=0.0,
        statistic=0.0,
        p=1.0,
        boundary=None,
        level=spending.level,
        spent=spending.spent,
        crossed=pack_flips(spending.crossed),
        passed=False,
    )
