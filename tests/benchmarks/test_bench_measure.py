"""Measurement of a row with real processes as sides: alternation, agreement, and the resulting lines."""

import math
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import _chosen
from benchmarks.harness.measure import Run, series, spread_of
from benchmarks.harness.row import Claim, DisagreementError, Outcome, Row, check_agreement
from benchmarks.harness.side import Measured
from benchmarks.rows import all_rows, find_row

CLAIM = Claim("X", "x", of="s", unit="s", goal=1.0, at_least=False)
_ORPHAN = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
"""


def _run(side: str, seconds: float) -> Run:
    return Run(side, Measured(Outcome({"s": seconds}), cpu_s=1.0, peak_mb=2.0))


def test_rows_are_chosen_by_their_ids_and_by_those_of_their_claims() -> None:
    rows = all_rows()
    assert {row.id for row in _chosen(rows, "P1a,P6,p7,P9", "full")} == {"P1a", "P6", "P7", "P8"}
    assert _chosen(rows, "", "full") == rows
    with pytest.raises(SystemExit, match="no such rows: P99; see --list"):
        _chosen(rows, "P9,P99", "full")


def test_all_that_one_process_measures_is_one_value() -> None:
    runs = [_run("a", 1.0), _run("b", 5.0), Run("a", Measured(Outcome({"s": [1.0, 4.0]}), 0, 0))]
    assert series(runs, "a", "s", geometric=True) == [1.0, pytest.approx(2.0)]
    assert series(runs, "a", "s", geometric=False) == [1.0, pytest.approx(2.5)]


def test_spread_compares_neighbours_of_one_side_only() -> None:
    runs = [_run("a", 1.0), _run("b", 4.0), _run("b", 2.0), _run("a", 9.0), _run("a", 9.0)]
    assert spread_of(runs, CLAIM) == pytest.approx(math.log(2) / 2)


def test_spread_needs_neighbours() -> None:
    assert spread_of([_run("a", 1.0), _run("b", 4.0)], CLAIM) is None


def test_sides_that_did_other_work_are_found() -> None:
    row = Row("X", {}, (CLAIM,), same=("rows",), close={"loss": 0.1})
    check_agreement(row, {"a": {"rows": 5, "loss": 1.0}, "b": {"rows": 5, "loss": 1.05}})
    with pytest.raises(DisagreementError, match="rows"):
        check_agreement(row, {"a": {"rows": 5, "loss": 1.0}, "b": {"rows": 6, "loss": 1.0}})
    with pytest.raises(DisagreementError, match="loss"):
        check_agreement(row, {"a": {"rows": 5, "loss": 1.0}, "b": {"rows": 5, "loss": 1.2}})
    with pytest.raises(DisagreementError, match="missing"):
        check_agreement(row, {"a": {}, "b": {}})


def test_orphans_are_counted_and_ended(tmp_path: Path) -> None:
    script = tmp_path / "measure.py"
    script.write_text(
        f"""
import subprocess, sys
from benchmarks.harness.tree import TreeMeter, adopt_orphans, descendants
adopt_orphans()
with TreeMeter() as meter:
    subprocess.run([sys.executable, "-c", {_ORPHAN!r}], check=True)
    import time
    while sum(one.cpu_s for one in descendants().values()) < 0.8:  # however long a busy machine takes
        time.sleep(0.1)
print(meter.cpu_s, meter.peak_mb, len(descendants()))
"""
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, str(script)],
        env={"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    cpu_s, peak_mb, left = map(float, done.stdout.split())
    assert cpu_s >= 0.7
    assert peak_mb > 1
    assert left == 0


def test_rows_and_claims_have_ids_of_their_own_and_known_sides() -> None:
    rows = all_rows()
    claims = [claim for row in rows for claim in row.claims]
    assert len({row.id for row in rows}) == len(rows)
    assert len({claim.id for claim in claims}) == len(claims)
    for row in rows:
        assert {claim.a for claim in row.claims} | {claim.b for claim in row.claims} <= row.sides.keys()
        assert find_row(row.id) is row


def test_every_row_of_the_table_is_there() -> None:
    wanted = [f"P{number}" for number in range(1, 17)] + ["G1", "G2"]
    found = {claim.id for row in all_rows() for claim in row.claims}
    for row in wanted:
        # P1 matches P1a and P1b, P14 matches P14-rows and so on: a letter or a hyphen follows, never a digit.
        assert any(claim.startswith(row) and not claim[len(row) :][:1].isdigit() for claim in found), row
