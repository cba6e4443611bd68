"""The tables of docs/gate.md: `python -m benchmarks.gate` takes an hour on one core, and less with `--share 0.1`.

`--metrics` computes only the tables of the metrics and of policy "unless_worse".

Each row is written to `benchmarks/gate.md` as soon as it is computed. The same seed gives the same tables.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.gate.metric_tables import metric_tables, share_text, table_row
from benchmarks.gate.nights import Nights, Rule, World, Year
from training.settings.schema import GateSettings

_NIGHTS = 365
_BETTER, _NOT_WORSE = GateSettings(), GateSettings(policy="not_worse")
_NOT_WORSE_2 = GateSettings(policy="not_worse", margin=0.02)
_SMALL, _LARGE = World(1000, 0.06), World(10_000, 0.06)


@dataclass(frozen=True)
class Line:
    """One row of a table.

    `gain` is the true gain of all candidates from night `since` on; `drift` is the true gain of each candidate over
    the champion of its night.
    """

    name: str
    rule: Rule
    world: World
    sequences: int
    settings: GateSettings = _BETTER
    gain: float = 0.0
    since: int = 1
    drift: float = 0.0

    def years(self, seed: int, count: int) -> list[Year]:
        gains = np.where(np.arange(1, _NIGHTS + 1) >= self.since, self.gain, 0.0)
        streams = np.random.SeedSequence([seed, *self.name.encode()]).spawn(count)
        return [
            Nights(self.world, self.settings, self.rule, np.random.default_rng(stream)).live(
                _NIGHTS, gains, self.drift
            )
            for stream in streams
        ]


EQUAL = (
    Line("each night by itself, 1,000 rows", "each night", _SMALL, 600),
    Line("joint, 1,000 rows", "joint", _SMALL, 600),
    Line("strict, 1,000 rows", "strict", _SMALL, 600),
    Line("joint, 1,000 rows of mixed difficulty", "joint", World(1000, 0.06, "mixed"), 300),
    Line("joint, 500 rows that grow to 1,000", "joint", World(1000, 0.06, growing=True), 300),
    Line("joint, 337 rows, 1.5 % differ", "joint", World(337, 0.015), 300),
    Line("joint, 10,000 rows", "joint", _LARGE, 100),
)
POWER = (
    Line("joint, 10,000 rows, from night 1", "joint", _LARGE, 40, gain=0.02),
    Line("joint, 10,000 rows, from night 100", "joint", _LARGE, 40, gain=0.02, since=100),
    Line("joint, 1,000 rows, from night 1", "joint", _SMALL, 150, gain=0.02),
    Line("joint, 1,000 rows, from night 100", "joint", _SMALL, 150, gain=0.02, since=100),
    Line("strict, 1,000 rows, from night 1", "strict", _SMALL, 300, gain=0.02),
    Line("strict, 1,000 rows, from night 100", "strict", _SMALL, 300, gain=0.02, since=100),
    Line("each night by itself, 1,000 rows, from night 1", "each night", _SMALL, 300, gain=0.02),
    Line("each night by itself, 1,000 rows, from night 100", "each night", _SMALL, 300, gain=0.02, since=100),
)
LOSSES = (
    Line(
        "each candidate 2 points worse, 1,000 rows, margin 2", "joint", _SMALL, 60, _NOT_WORSE_2, gain=-0.02
    ),
    Line("equal models, 1,000 rows, margin 2", "joint", _SMALL, 20, _NOT_WORSE_2),
    Line(
        "each candidate 0.02 points worse than the last, 10,000 rows",
        "joint",
        _LARGE,
        30,
        _NOT_WORSE,
        drift=-0.0002,
    ),
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gate", description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="share of the sequences to simulate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "gate.md")
    parser.add_argument("--metrics", action="store_true", help="only the tables of the metrics")
    options = parser.parse_args(argv)
    text = f"A year of {_NIGHTS} nights, simulated; `python -m benchmarks.gate`, seed {options.seed}.\n"
    tables = ((_equal, _EQUAL_HEAD, EQUAL), (_power, _POWER_HEAD, POWER), (_losses, _LOSSES_HEAD, LOSSES))
    for row_of, head, lines in () if options.metrics else tables:
        text += f"\n{head[0]}\n\n{table_row(*head[1:])}\n{table_row(*['---' for _ in head[1:]])}\n"
        for line in lines:
            began = time.perf_counter()
            years = line.years(options.seed, max(2, round(line.sequences * options.share)))
            row = row_of(line, years)
            print(f"{row}  {time.perf_counter() - began:.0f} s", flush=True)
            text += f"{row}\n"
            options.out.write_text(text, encoding="utf-8")
    for row in metric_tables(options.seed, options.share):
        print(row, flush=True)
        text += f"{row}\n"
        options.out.write_text(text, encoding="utf-8")
    return 0


_EQUAL_HEAD = (
    'Equal models, policy "better":',
    "rule and rows",
    "years",
    "any false promotion",
    "champion's accuracy too high by, points",
    "after correction",
)


def _equal(line: Line, years: list[Year]) -> str:
    promoted = sum(bool(year.promotions) for year in years)
    shown = np.array([year.true_wrong - year.shown_wrong for year in years])
    left = shown - [year.excess for year in years]
    return table_row(line.name, len(years), share_text(promoted, len(years)), _points(shown), _points(left))


_POWER_HEAD = (
    "Candidates that are truly 2 points better, from a given night on:",
    "rule and rows",
    "years",
    "promoted the same night",
    "within 30 nights",
    "within the year",
    "measured gain, points",
    "corrected",
)


def _power(line: Line, years: list[Year]) -> str:
    first = [next((promotion for promotion in year.promotions if promotion.better), None) for year in years]
    waits = np.array([promotion.night - line.since if promotion else np.inf for promotion in first])
    shares = [share_text(int((waits < limit).sum()), len(years)) for limit in (1, 30, _NIGHTS)]
    measured = np.array([promotion.look.difference for promotion in first if promotion])
    corrected = np.array([promotion.corrected for promotion in first if promotion])
    return table_row(line.name, len(years), *shares, _points(measured), _points(corrected))


_LOSSES_HEAD = (
    'Policy "not_worse", margin in points, 0.5 where none is named:',
    "rule and candidates",
    "years",
    "years with a promotion",
    "promotions a year",
    "champion's true loss after the year, points",
)


def _losses(line: Line, years: list[Year]) -> str:
    promoted = sum(bool(year.promotions) for year in years)
    number = np.mean([len(year.promotions) for year in years])
    lost = np.array([year.gain for year in years])
    return table_row(line.name, len(years), share_text(promoted, len(years)), f"{number:.1f}", _points(-lost))


def _points(shares: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> str:
    """Mean in percentage points, with 1.96 standard errors."""
    if len(shares) < 2:
        return "-"
    return f"{100 * shares.mean():.2f} ± {196 * shares.std(ddof=1) / np.sqrt(len(shares)):.2f}"


if __name__ == "__main__":
    raise SystemExit(main())
