"""Simulated reigns of champions. A row's difficulty is the probability that a model classifies that row wrongly.

Every model draws its mistakes independently, row by row, so models are equally good in truth, but correlated because
they share the rows. A better model's mistakes are less probable by the same factor on all rows.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
from scipy.stats import norm

from tasks.gate.look import Spending, alpha_of, spend_jointly, spend_strictly
from tasks.gate.paired import margin_score, mcnemar
from tasks.gate.reign import Reign, pack_flips
from tasks.gate.selection import corrected_gain
from tasks.gate.signs import FLIPS
from training.records import Look
from training.settings.schema import GateSettings

Rule = Literal["joint", "strict", "each night"]
Wrong = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class World:
    """Test rows and models. `disagreement` is the share of rows on which two equal models differ.

    Only "hard" rows are ever wrong. The probability that a hard row is wrong is the same for all models: 0.5 for kind
    "even", drawn from Beta(0.5, 0.5) for each row for kind "mixed".
    """

    rows: int
    disagreement: float
    kind: Literal["even", "mixed"] = "even"
    growing: bool = False

    def difficulties(self, rng: np.random.Generator) -> npt.NDArray[np.float64]:
        """Probability of a mistake for each row, shape (rows,)."""
        if self.kind == "even":  # 2 p (1 - p) = 0.5
            hard, levels = 2 * self.disagreement, np.full(self.rows, 0.5)
        else:  # 2 E[p (1 - p)] = 2 * (1/2 - 3/8) = 0.25
            hard, levels = 4 * self.disagreement, rng.beta(0.5, 0.5, self.rows)
        return np.where(rng.random(self.rows) < hard, levels, 0.0)


@dataclass(frozen=True)
class Promotion:
    """A promotion: its night (from 1), whether the new model is truly better, and the look that promoted it."""

    night: int
    better: bool
    look: Look

    @property
    def corrected(self) -> float:
        """The measured gain, corrected for selection."""
        return corrected_gain(self.look)


@dataclass
class Year:
    """Outcome of a year with a retraining every night; all numbers are shares of rows.

    `shown_wrong` (measured), `true_wrong` and `gain` (over the first champion) belong to the last champion; `excess`
    is the sum of the corrections for selection.
    """

    promotions: list[Promotion]
    shown_wrong: float
    true_wrong: float
    excess: float
    gain: float


class Nights:
    """A test set, a champion and its candidates, one candidate a night."""

    def __init__(self, world: World, settings: GateSettings, rule: Rule, rng: np.random.Generator) -> None:
        self.world, self.settings, self.rule, self.rng = world, settings, rule, rng
        difficulties = world.difficulties(rng)
        self.order = rng.permutation(world.rows)  # order in which rows arrive in a growing test set
        self.used = np.flatnonzero(difficulties)
        self.difficulties = difficulties[self.used]
        self.arrival = np.argsort(self.order)[self.used]

    def live(self, nights: int, gains: npt.NDArray[np.float64], drift: float = 0.0) -> Year:
        """Simulate `nights`; `gains[n]` is the true gain of night n's candidate over the first champion.

        If `drift` is not zero, each candidate's true gain over the present champion is `drift` instead.
        """
        champion, gain = self._model(0.0), 0.0
        reference, reign = champion, Reign()
        made: list[Promotion] = []
        excess, night = 0.0, 0
        while night < nights:
            signs = self._signs()
            # Looks are computed in blocks. A promotion discards the rest of its block, because the reference changes.
            block = min(_BLOCK, nights - night)
            truths = [gain + drift if drift else float(gains[night + n]) for n in range(block)]
            candidates = np.array([self._model(true_gain) for true_gain in truths])
            night, reign, passed = self._block(night, candidates, reference, reign, signs)
            if passed is None:
                continue
            at, look = passed
            champion, gain = candidates[at], truths[at]
            made.append(Promotion(night, gain > 0, look))
            if self.settings.policy == "better":
                reference, reign, self.kept_signs = champion, Reign(), None
                if look.boundary is not None or look.level:
                    excess += (look.difference - corrected_gain(look)) / 2
        wrong = float(self.difficulties.sum()) / self.world.rows
        return Year(made, float(champion.sum()) / self.world.rows, wrong - gain, excess, gain)

    kept_signs: npt.NDArray[np.float32] | None = None

    def _signs(self) -> npt.NDArray[np.float32] | None:
        """Signs (+-1) of this reign, shape (hard rows, FLIPS), from a random generator: faster than from digests."""
        if self.rule != "joint":
            return None
        if self.kept_signs is None:
            packed = self.rng.integers(0, 256, (len(self.used), FLIPS // 8), dtype=np.uint8)
            self.kept_signs = np.unpackbits(packed, axis=1).astype(np.float32) * 2 - 1
        return self.kept_signs

    def _model(self, gain: float) -> Wrong:
        """Draw a model's mistakes on the hard rows."""
        mean = float(self.difficulties.sum()) / self.world.rows
        return self.rng.random(len(self.used)) < self.difficulties * (1 - gain / mean)

    def _block(
        self,
        night: int,
        candidates: Wrong,
        reference: Wrong,
        reign: Reign,
        signs: npt.NDArray[np.float32] | None,
    ) -> tuple[int, Reign, tuple[int, Look] | None]:
        """Look at consecutive nights until one passes: (next night, state, index and look that passed, or None)."""
        rows = [self._rows(night + n) for n in range(len(candidates))]
        there = np.array([self.arrival < count for count in rows])
        differences = (reference.astype(np.float64) - candidates) * there
        margin = self.settings.margin if self.settings.policy == "not_worse" else 0.0
        differences = np.where(differences, differences + margin, 0.0)
        sums = None if signs is None else (differences.astype(np.float32) @ signs).astype(np.float64)
        if sums is not None and not margin:
            sums = np.rint(sums)
        for n, row in enumerate(differences):
            gained, lost = int((row > 0).sum()), int((row < 0).sum())
            flips = np.zeros(0) if sums is None else sums[n]
            look, reign = self._look(row, flips, gained, lost, rows[n], reign, int(reference.sum()))
            if look.passed:
                return night + n + 1, reign, (n, look)
        return night + len(candidates), reign, None

    def _rows(self, night: int) -> int:
        return self.world.rows * (365 + night) // 730 if self.world.growing else self.world.rows

    def _look(
        self,
        differences: npt.NDArray[np.float64],
        flips: npt.NDArray[np.float64],
        gained: int,
        lost: int,
        rows: int,
        reign: Reign,
        reference_wrong: int,
    ) -> tuple[Look, Reign]:
        settings = self.settings
        if settings.policy == "better":
            p, size = mcnemar(gained, lost), float(np.sqrt(gained + lost))
            statistic = (gained - lost) / size if size else 0.0
        else:
            statistic = margin_score(gained, lost, rows, settings.margin)
            p = float(norm.sf(statistic))
        if self.rule == "joint":
            spending = spend_jointly(reign, flips, differences, settings)
        elif self.rule == "strict":
            spending = spend_strictly(reign, settings)
        else:
            spending = Spending(None, alpha_of(settings), alpha_of(settings), np.zeros(0, np.intp))
        key = f"{reign.looks:012x}"
        look = Look(
            question=settings.policy,
            measure="accuracy",
            reference_version="1",
            key=key,
            number=reign.looks + 1,
            error_control="strict" if self.rule == "strict" else "joint",
            alpha=alpha_of(settings),
            horizon=settings.horizon,
            margin=settings.margin if settings.policy == "not_worse" else 0.0,
            rows=rows,
            rows_digest="",
            gained=gained,
            lost=lost,
            reference_wrong=reference_wrong,
            difference=(gained - lost) / rows,
            statistic=statistic,
            p=p,
            boundary=spending.boundary,
            level=spending.level,
            spent=spending.spent,
            crossed=pack_flips(spending.crossed),
            passed=p <= spending.level or (spending.boundary is not None and statistic > spending.boundary),
        )
        return look, reign.after(look)


_BLOCK = 16
