"""The records of `make chaos`, and how an interrupted `make chaos` continues."""

from pathlib import Path
from typing import Any

import pytest
from named_parts import WITH_FOLDER

from benchmarks.chaos import workloads
from benchmarks.chaos.__main__ import main
from benchmarks.chaos.faults import all_faults
from benchmarks.chaos.record import Broken, Outcome, add_outcome, of_fault, read_outcomes
from benchmarks.chaos.step_watch import last_step
from benchmarks.chaos.summary import write_summary
from benchmarks.chaos.workloads import WORKLOADS
from training.recipe import load
from training.settings.overrides import parse_assignments, resolve


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
    for trial_outcome in (outcome(), outcome(trial=2), outcome(trial=3, seed=8)):
        add_outcome(table, trial_outcome)
    table.write_text(table.read_text() + table.read_text()[:50])
    assert [trial_outcome.trial for trial_outcome in read_outcomes(table, 7)] == [1, 2]
    assert [trial_outcome.trial for trial_outcome in read_outcomes(table, 8)] == [3]
    assert of_fault(read_outcomes(table, 7), "F2", "torch") == []


def test_a_line_from_before_there_were_other_trainers_is_of_the_pytorch_loop(tmp_path: Path) -> None:
    table = tmp_path / "chaos.jsonl"
    table.write_text(outcome().model_dump_json(exclude={"trainer"}) + "\n")
    add_outcome(table, outcome(trainer="xgboost"))
    outcomes = read_outcomes(table, 7)
    assert [trial_outcome.trainer for trial_outcome in outcomes] == ["torch", "xgboost"]
    assert of_fault(outcomes, "F1", "torch") == outcomes[:1]
    assert of_fault(outcomes, "F1", "xgboost") == outcomes[1:]


@pytest.mark.extended
def test_trials_that_are_recorded_are_not_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for trainer in WORKLOADS:
        add_outcome(tmp_path / "chaos.jsonl", outcome(trainer=trainer))
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
    assert f"{len(WORKLOADS)} trials, 0 broke something" in capsys.readouterr().out
    assert len(read_outcomes(tmp_path / "chaos.jsonl", 7)) == len(WORKLOADS)
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == []


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
    assert "| F1: SIGKILL of a rank | torch | 3 | 3 | 1 of 2 | 3 of 3 | 1 | 0 | 5 | 10 / 12 | 1 |" in page
    assert "F1, torch, trial 3" in page
    assert "I3 metrics file: train/loss is missing at step 4" in page
    assert "seed 7" in page
    assert "- F16: " in page
    assert "- F22, xgboost: Another number of workers" in page


def test_every_trainer_has_a_workload() -> None:
    assert {workload.trainer for workload in WORKLOADS.values()} == WITH_FOLDER
    assert set(WORKLOADS) >= WITH_FOLDER


@pytest.mark.parametrize("trainer", WORKLOADS)
def test_each_fault_is_tried_with_a_trainer_or_says_why_not(trainer: str) -> None:
    for fault in all_faults():
        kinds = fault.kinds_of(trainer)
        assert bool(kinds) != bool(fault.not_with.get(trainer)), fault.id
        assert trainer == "torch" or all(kind.virtual_shards is None for kind in kinds), fault.id
        assert {kind.trainer for kind in kinds} <= {trainer}


@pytest.mark.parametrize("trainer", WORKLOADS)
def test_the_recipe_of_a_workload_is_of_its_trainer_and_takes_its_settings(
    trainer: str, tmp_path: Path
) -> None:
    workload = WORKLOADS[trainer]
    recipe, ref = load(str(workload.write(tmp_path)))
    settings = resolve(
        recipe.settings, parse_assignments(f"{name}={value}" for name, value in workload.settings.items())
    )
    assert (ref.name, settings.trainer) == (workload.recipe, workload.trainer)
    assert settings.checkpoint.every_steps == workload.steps_per_checkpoint


@pytest.mark.extended
@pytest.mark.parametrize(("trainer", "library"), [("torch-deepspeed", "deepspeed"), ("keras", "keras")])
def test_a_trainer_whose_library_is_missing_is_named_and_left_out(
    trainer: str,
    library: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(workloads, "find_spec", lambda name: None if name == library else True)
    assert WORKLOADS["torch-fsdp"].missing_library == ""
    arguments = ["--faults", "F1", "--trials", "1", "--out", str(tmp_path), "--work", str(tmp_path)]
    assert main([*arguments, "--trainer", trainer]) == 0
    assert f"F1 {trainer}: not tried. {library} is not installed here" in capsys.readouterr().out


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
