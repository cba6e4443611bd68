"""The records of `make chaos`, and how an interrupted `make chaos` continues."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.chaos.__main__ import main
from benchmarks.chaos.faults import all_faults
from benchmarks.chaos.record import Broken, Outcome, add_outcome, of_fault, read_outcomes
from benchmarks.chaos.step_watch import last_step
from benchmarks.chaos.summary import write_summary


def outcome(**fields: Any) -> Outcome:
    given: dict[str, Any] = {
        "fault": "F1",
        "trial": 1,
        "seed": 7,
        "moment": "SIGKILL to rank 0 at step 9",
        "injected": True,
        "statuses": (0,),
        "weights_identical": True,
        "one_version": True,
        "metric_gaps": False,
        "metric_doubles": False,
        "steps_repeated": 3,
        "attempts": 2,
        "recovery_s": 8.0,
        "seconds": 30.0,
        "broken": (),
        "untold": (),
        "code": "abc",
        "at": "2026-01-02T03:04:05+00:00",
    }
    return Outcome.model_validate({**given, **fields})


def test_a_line_that_was_cut_short_and_other_seeds_are_left_out(tmp_path: Path) -> None:
    table = tmp_path / "new" / "chaos.jsonl"
    for one in (outcome(), outcome(trial=2), outcome(trial=3, seed=8)):
        add_outcome(table, one)
    table.write_text(table.read_text() + table.read_text()[:50])
    assert [one.trial for one in read_outcomes(table, 7)] == [1, 2]
    assert [one.trial for one in read_outcomes(table, 8)] == [3]
    assert of_fault(read_outcomes(table, 7), "F2") == []


def test_trials_that_are_recorded_are_not_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_outcome(tmp_path / "chaos.jsonl", outcome())
    arguments = [
        "--faults",
        "F1",
        "--trials",
        "1",
        "--seed",
        "7",
        "--out",
        str(tmp_path),
        "--work",
        str(tmp_path),
    ]
    assert main(arguments) == 0
    assert "1 trials, 0 broke something" in capsys.readouterr().out
    assert len(read_outcomes(tmp_path / "chaos.jsonl", 7)) == 1
    assert [one.name for one in tmp_path.iterdir() if one.is_dir()] == []


def test_the_table_counts_what_can_be_told(tmp_path: Path) -> None:
    bad = Broken(invariant="I3", name="metrics file", detail="train/loss is missing at step 4")
    trials = [
        outcome(),
        outcome(trial=2, weights_identical=None, recovery_s=None),
        outcome(
            trial=3,
            weights_identical=False,
            metric_gaps=True,
            steps_repeated=5,
            recovery_s=12.0,
            broken=(bad,),
        ),
    ]
    write_summary(tmp_path / "chaos.md", all_faults(), trials, seed=7)
    page = (tmp_path / "chaos.md").read_text()
    assert "| F1: SIGKILL of a rank | 3 | 3 | 1 of 2 | 3 of 3 | 1 | 0 | 5 | 10 / 12 | 1 |" in page
    assert "F1, trial 3" in page
    assert "I3 metrics file: train/loss is missing at step 4" in page
    assert "seed 7" in page
    assert "- F16: " in page


def test_an_unknown_fault_is_refused() -> None:
    with pytest.raises(SystemExit, match="no such faults: F99"):
        main(["--faults", "F1,F99"])


@pytest.mark.parametrize(
    ("text", "step"), [("", 0), ('{"step": 2}\n{"step": 4}\n', 4), ('{"step": 2}\n{"ste', 2), ("x", 0)]
)
def test_the_last_whole_line_counts(tmp_path: Path, text: str, step: int) -> None:
    (tmp_path / "metrics.jsonl").write_text(text)
    assert last_step(tmp_path / "metrics.jsonl") == step
    assert last_step(tmp_path / "none") is None
