"""Sixty nights of one table through the real command: `python -m benchmarks.sixty_nights`, about 15 minutes.

Each night writes an export, calls `evergreen retrain`, and is judged: no night of nonsense may change the champion,
each improvement that the rows can show has to, a promoted model has to be truly better (measured on 20,000 rows that
no model sees), and `evergreen history` has one sentence for each night. The exit status is 1 if a night is wrong. The
page `benchmarks/sixty_nights.md` is written anew.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq

from benchmarks.sixty_nights.customers import customers, cut_off, write_export
from benchmarks.sixty_nights.nights import Night, sixty_nights

_SEED, _TRUTH_SEED, _TRUTH_ROWS = 1, 2, 20_000
_SAME_TRUTH = 0.002  # a promoted model may be worse by this, the error of accuracies on 20,000 rows
_HELD = 6
_MODEL = "customers"
_RECIPE = '''"""Which customers leave?"""

from evergreen import Classification, Recipe, ScalingSettings, Settings, Table, XGBoost

recipe = Recipe(
    "customers",
    source=Table("customers.csv", target="left", key="customer"),
    problem=Classification(),
    trainer=XGBoost(rounds=60),
    settings=Settings(scaling=ScalingSettings(num_workers=0)),
)
'''


@dataclass(frozen=True)
class End:
    """How a night ended: its outcome, the champion's version afterwards and, if it is new, its true accuracy."""

    night: Night
    outcome: str
    champion: str
    truth: float | None
    wrong: str = ""


class Nights:
    """A folder with the recipe, the export and the home, in which nights are lived."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.table = folder / "customers.csv"
        self.champion, self.truth = "", 0.0
        (folder / "customers.py").write_text(_RECIPE)
        customers(_TRUTH_ROWS, _TRUTH_SEED).to_csv(folder / "truth.csv", index=False)

    def live(self, night: Night) -> End:
        """Live one night, and judge it."""
        write_export(self.table, night.rows, _SEED, night.number, night.change)
        if night.cut < 1:
            cut_off(self.table, night.cut)
        outcome, answer = self._outcome()
        champion, truth = self.champion, self.truth
        if outcome == "promoted":
            self.champion, self.truth = answer["version"], self._accuracy()
        return End(
            night,
            outcome,
            self.champion,
            self.truth if outcome == "promoted" else None,
            _wrong(night, outcome, bool(champion), self.truth - truth),
        )

    def history(self) -> list[dict[str, str]]:
        """The lines of `evergreen history`, oldest first."""
        done = self.command("history", _MODEL, "--json")
        if done.returncode:
            raise SystemExit(f"evergreen history failed:\n{done.stderr}")
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Call the command in the folder, with the home there."""
        environment = os.environ | {"EVERGREEN_HOME": str(self.folder / "home")}
        return subprocess.run(
            [sys.executable, "-m", "flows.cli.main", *arguments],
            cwd=self.folder,
            env=environment | {"PYTHONPATH": str(Path(__file__).parents[2])},
            capture_output=True,
            text=True,
            check=False,
        )

    def _outcome(self) -> tuple[str, dict[str, str]]:
        done = self.command("retrain", "customers.py", "--quiet", "--json")
        if done.returncode:
            return "held" if done.returncode == _HELD else "failed", {}
        answer = json.loads(done.stdout.splitlines()[-1])
        return "unchanged" if answer["reused"] else answer["verdict"], answer

    def _accuracy(self) -> float:
        """Accuracy of the champion on rows that no model has seen."""
        scored, truth = self.folder / "scored.parquet", self.folder / "truth.csv"
        done = self.command("predict", _MODEL, str(truth), str(scored), "--overwrite", "--quiet")
        if done.returncode:
            raise SystemExit(f"evergreen predict failed:\n{done.stderr}")
        predicted = pq.read_table(scored)["prediction"].to_pylist()
        return float((pd.read_csv(truth)["left"] == predicted).mean())


def _wrong(night: Night, outcome: str, has_champion: bool, gain: float) -> str:
    """What is wrong with the night's end; empty if nothing is."""
    if outcome not in night.ends:
        return f"ended as {outcome}, not as {' or '.join(sorted(night.ends))}"
    if outcome == "promoted" and has_champion and gain < -_SAME_TRUTH:
        return f"the new champion is worse by {-100 * gain:.2f} points"
    return ""


def _page(ends: list[End], sentences: list[str]) -> str:
    lines = [
        "# Sixty nights of a table",
        "",
        "Written by `python -m benchmarks.sixty_nights`. The sentences are those of `evergreen history`.",
        "",
        "| night | data | end | champion | true accuracy of a new champion | sentence |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for end, sentence in zip(ends, sentences, strict=True):
        truth = "" if end.truth is None else f"{100 * end.truth:.1f} %"
        outcome = f"**{end.outcome}: {end.wrong}**" if end.wrong else end.outcome
        cells = (
            str(end.night.number),
            end.night.data,
            outcome,
            end.champion,
            truth,
            sentence.replace("|", "\\|"),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Live the nights, print a line for each, write the page."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sixty_nights", description=__doc__)
    parser.add_argument("--nights", type=int, default=60, help="live only the first nights")
    parser.add_argument("--keep", action="store_true", help="keep the folder, and print its path")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "sixty_nights.md")
    chosen = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="nights-"))
    try:
        nights, ends = Nights(folder), []
        for night in list(sixty_nights())[: chosen.nights]:
            end = nights.live(night)
            ends.append(end)
            print(
                f"{night.number:3} {night.data:45} {end.outcome:10} {end.champion:3} {end.wrong}", flush=True
            )
        sentences = [line["sentence"] for line in nights.history()]
        if len(sentences) != len(ends) or not all(sentences):
            print(
                f"history has {len(sentences)} lines with {sum(map(bool, sentences))} sentences", flush=True
            )
            return 1
        chosen.out.write_text(_page(ends, sentences))
        return int(any(end.wrong for end in ends))
    finally:
        if chosen.keep:
            print(folder)
        else:
            shutil.rmtree(folder)


if __name__ == "__main__":
    sys.exit(main())
