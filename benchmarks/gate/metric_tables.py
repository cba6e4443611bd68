"""The tables about the metrics of `gate.metric`, and about policy "unless_worse"."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy.stats import binomtest

from benchmarks.gate.metric_nights import Event, MetricWorld, first_event
from training.problems.row_metrics import ROW_METRICS

_NIGHTS, _MONTH = 365, 30
_YEARS, _POWER_YEARS = 200, 100
_RARE = 0.02

WORLDS = (
    *(MetricWorld(name, 1000) for name in ("balanced_accuracy", "log_loss", "brier", "cost", "auc", "f1")),
    *(MetricWorld(name, 1000, _RARE) for name in ("balanced_accuracy", "log_loss", "cost", "auc", "f1")),
    MetricWorld("auc", 3000, _RARE),
    *(MetricWorld(name, 1000) for name in ("squared", "absolute", "pinball")),
)
POLICY_WORLDS = (MetricWorld("accuracy", 300), MetricWorld("accuracy", 1000), MetricWorld("auc", 300))


@dataclass(frozen=True)
class Simulated:
    """Simulated years of a world, whose candidates are better than the champion by `gain` (in truth)."""

    world: MetricWorld
    event: Event
    gain: float
    nights: int
    years: int

    def first_nights(self, seed: int) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        """The night of the first event of each year; infinite in a year without one."""
        skill = self.world.skill_for(self.gain) if self.gain else self.world.skill
        name = f"{self.world}{self.event}{self.gain}"
        streams = np.random.SeedSequence([seed, *name.encode()]).spawn(self.years)
        nights = [
            first_event(self.world, skill, self.nights, self.event, np.random.default_rng(stream))
            for stream in streams
        ]
        return np.array([night or np.inf for night in nights])


def metric_tables(seed: int, share: float) -> Iterator[str]:
    """The rows of the tables; `share` is the share of the years to simulate."""
    years, power_years = (max(2, round(count * share)) for count in (_YEARS, _POWER_YEARS))
    yield "\nEach metric, candidates that are equal to the champion, and candidates that are better:\n"
    head = ("metric, rows", "value", "years", "any false promotion in the year", "better")
    yield table_row(*head, "promoted the same night", "within 30 nights")
    yield table_row(*["---"] * 7)
    for world in WORLDS:
        metric = ROW_METRICS[world.metric]
        gain = 0.02 if metric.is_share else 0.05
        equal = Simulated(world, "better", 0.0, _NIGHTS, years).first_nights(seed)
        better = Simulated(world, "better", gain, _MONTH, power_years).first_nights(seed)
        yield table_row(
            _name(world),
            f"{world.truth(world.skill):.3f}",
            len(equal),
            share_text(int(np.isfinite(equal).sum()), len(equal)),
            "+2 points" if metric.is_share else "5 % less",
            share_text(int((better == 1).sum()), len(better)),
            share_text(int(np.isfinite(better).sum()), len(better)),
        )
    yield '\nPolicy "unless_worse":\n'
    yield table_row(
        "metric, rows", "candidates", "years", "kept back the first night", "in the time", "nights"
    )
    yield table_row(*["---"] * 6)
    for world in POLICY_WORLDS:
        for gain, nights, count in ((0.0, _NIGHTS, years), (-0.05, 1, power_years), (-0.1, 1, power_years)):
            kept = Simulated(world, "unless_worse", gain, nights, count).first_nights(seed)
            yield table_row(
                _name(world),
                f"{-100 * gain:g} points worse" if gain else "equal",
                len(kept),
                share_text(int((kept == 1).sum()), len(kept)),
                share_text(int(np.isfinite(kept).sum()), len(kept)),
                nights,
            )


def _name(world: MetricWorld) -> str:
    rare = f", {100 * world.share:g} % of a class" if world.share == _RARE else ""
    return f"{world.metric}, {world.rows:,} rows{rare}"


def table_row(*cells: object) -> str:
    """A row of a Markdown table."""
    return f"| {' | '.join(map(str, cells))} |"


def share_text(count: int, of: int) -> str:
    """A proportion with Wilson's 95 % interval."""
    interval = binomtest(count, of).proportion_ci(0.95, method="wilson")
    return f"{count / of:.3f} ({interval.low:.3f} to {interval.high:.3f})"
