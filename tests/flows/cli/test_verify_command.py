"""`evergreen verify` as a user meets it: the choice of the run, the output, and the exit status."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flows.cli.verify import exit_status, locate, print_findings, summary
from flows.retrain import retrain
from tasks.verify.finding import Finding
from tasks.verify.runs import find_run, home_of
from training.errors import EXIT_BAD_DATA, EXIT_BAD_SETTING, EXIT_OK, SettingError
from training.storage.paths import Home, RunPaths


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, prefect_harness: None) -> RunPaths:
    """A finished and registered run that takes seconds."""
    home = Home(tmp_path_factory.mktemp("finished"))
    settings: Any = {
        "training": {"epochs": 1},
        "scaling": {"num_workers": 0},
        "tracking": {"system_metrics": False},
        "gate": {"floor": 0.1},
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EVERGREEN_HOME", str(home.root))
        release = retrain("digits", settings)
    return home.run("digits", release.run_key)


def evergreen(*arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    """Run `evergreen verify` in a new process, with no Prefect server configured."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    return subprocess.run(
        [sys.executable, "-m", "flows.cli.main", "verify", *arguments],
        capture_output=True,
        text=True,
        env=environment | {"EVERGREEN_HOME": str(home)},
        check=False,
    )


@pytest.mark.extended
def test_a_sound_run_by_its_recipes_name(finished: RunPaths) -> None:
    done = evergreen("digits", "--json", home=home_of(finished).root)
    assert done.returncode == EXIT_OK, done.stdout + done.stderr
    *lines, told = done.stdout.splitlines()
    findings = json.loads(told)["findings"]
    assert {check["ok"] for check in findings} == {True}
    assert lines[-1] == f"{finished.root}: {len(findings)} of {len(findings)} checks hold"
    marked = [line for line in lines if line.startswith("✓")]
    assert len(marked) == len(findings)  # one line for each finding


@pytest.mark.extended
def test_an_unfinished_run_by_its_folder_says_what_comes_next(finished: RunPaths, tmp_path: Path) -> None:
    kept = {file: file.read_bytes() for file in (finished.release, finished.report)}
    for file in kept:
        file.unlink()
    try:
        done = evergreen(str(finished.root), home=tmp_path / "another")
    finally:
        for file, content in kept.items():
            file.write_bytes(content)
    assert done.returncode == EXIT_BAD_DATA
    line = next(line for line in done.stdout.splitlines() if line.startswith("✗  I10"))
    assert "not finished, the next step is report" in line
    assert "broken: I9, I10" in done.stdout.splitlines()[-1]  # MLflow has status FINISHED
    assert not (tmp_path / "another").exists()


def test_a_missing_run_is_refused(tmp_path: Path) -> None:
    done = evergreen("digits", home=tmp_path)
    assert done.returncode == EXIT_BAD_SETTING
    assert f"no such run folder, run key or recipe in {tmp_path}. Runs: none yet" in done.stderr


# Choice of the run


def started(home: Home, recipe: str, key: str, at: float) -> RunPaths:
    """Create the files that a run's folder has from the start of the run."""
    run = home.run(recipe, key)
    run.root.mkdir(parents=True)
    run.ingredients.write_text(json.dumps({"home": str(home.root), "run_key": key}))
    os.utime(run.ingredients, (at, at))
    return run


@pytest.fixture
def runs(home: Home) -> list[RunPaths]:
    keys = ("aa11" * 16, "aa22" * 16, "bb33" * 16)
    recipes = ("digits", "digits", "feed")
    times = (2000.0, 1000.0, 3000.0)
    return [started(home, recipe, key, at) for recipe, key, at in zip(recipes, keys, times, strict=True)]


@pytest.mark.parametrize(
    ("text", "number"),
    [("digits", 0), ("aa2", 1), ("aa22" * 4, 1), ("aa22" * 16, 1), ("aa22" * 10, 1), ("b", 2), ("feed", 2)],
)
def test_a_run_is_found_by_recipe_key_or_the_beginning_of_a_key(
    home: Home, runs: list[RunPaths], text: str, number: int
) -> None:
    assert find_run(text, home) == runs[number]
    assert locate(text) == (runs[number], home)


@pytest.mark.parametrize("text", ["", "cc", "aa22" * 15 + "aa23", "digit", "../runs", "."])
def test_a_text_that_names_no_run_is_refused(home: Home, runs: list[RunPaths], text: str) -> None:
    with pytest.raises(SettingError, match="no such run folder, run key or recipe") as caught:
        find_run(text, home)
    assert f"digits/{'aa11' * 4}" in str(caught.value)


def test_a_text_that_names_several_runs_is_refused(home: Home, runs: list[RunPaths]) -> None:
    with pytest.raises(SettingError, match="several run keys begin like this") as caught:
        find_run("aa", home)
    assert "feed" not in str(caught.value)


def test_a_folder_belongs_to_the_home_around_it_or_to_the_one_in_its_plan(
    home: Home, runs: list[RunPaths], tmp_path: Path
) -> None:
    assert locate(str(runs[2].root)) == (runs[2], home)
    elsewhere = RunPaths(runs[2].root.rename(tmp_path / "kept"))
    assert locate(str(elsewhere.root)) == (elsewhere, home)
    elsewhere.ingredients.write_text("{")
    with pytest.raises(SettingError, match="is in no home"):
        locate(str(elsewhere.root))


# Output


def finding(invariant: str, ok: bool | None) -> Finding:
    return Finding(invariant=invariant, name="a check", ok=ok, detail="[bold] 3 of 4")


def test_one_broken_invariant_decides_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    fine = [finding("I1", True), finding("I2", None)]
    assert (exit_status(fine), summary(fine)) == (EXIT_OK, "1 of 2 checks hold, 1 not possible here")
    broken = [*fine, finding("I3", False), finding("I3", False)]
    assert (exit_status(broken), summary(broken)) == (
        EXIT_BAD_DATA,
        "1 of 4 checks hold, 1 not possible here; broken: I3",
    )
    print_findings(RunPaths(Path("/runs/one")), broken)
    lines = capsys.readouterr().out.splitlines()
    assert [line[0] for line in lines] == ["✓", "–", "✗", "✗", "/"]
    assert "[bold] 3 of 4" in lines[0]


def test_the_folder_of_a_recipe_in_another_home_is_no_run_of_this_home(
    finished: RunPaths, home: Home
) -> None:
    with pytest.raises(SettingError, match="no such run folder, run key or recipe"):
        locate(str(finished.root.parent))
