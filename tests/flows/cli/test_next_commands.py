"""The commands that Evergreen suggests next to the user must work as printed."""

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import registered
from registered import MODEL
from small_runs import tiny_settings, write_recipe

from flows.cli.summary import _scores, print_release
from tasks.registry.aliases import CHALLENGER, CHAMPION, PREVIOUS, ROLLED_BACK_TAG
from tasks.terminal.next_commands import next_commands
from tasks.train import keep_plan
from training.data.sources.digits import Digits
from training.errors import EXIT_OK, EXIT_RESOURCE, ResourceError
from training.plan import RunPlan, arguments_of_run, identify
from training.recipe import load
from training.records import Goodput, Release, Verdict
from training.storage import paths
from training.storage.paths import Home


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> tuple[Home, Any]:
    home = Home(tmp_path_factory.mktemp("registry"))
    return home, registered.register(home, versions=2)


@pytest.fixture
def served(registry: tuple[Home, Any], monkeypatch: pytest.MonkeyPatch) -> tuple[Home, Any]:
    """A home with two versions of a model and no alias."""
    home, client = registry
    monkeypatch.setenv("EVERGREEN_HOME", str(home.root))
    for alias in (CHAMPION, CHALLENGER, PREVIOUS):
        client.delete_registered_model_alias(MODEL, alias)
    return home, client


def release_of(client: Any, recipe: str = "digits", run_key: str = "0" * 64, **changes: Any) -> Release:
    """The release that created version 2 of the served model."""
    fields: dict[str, Any] = {
        "recipe": recipe,
        "run_key": run_key,
        "dataset_fingerprint": "0" * 64,
        "weights_digest": "0" * 64,
        "model": MODEL,
        "version": "2",
        "alias": "challenger",
        "train_rows": 1,
        "test_rows": 1,
        "epochs": 1,
        "selected_epoch": 1,
        "evaluation": "",
        "verdict": Verdict(promote=False, summary="[/not] markup", rules=(), champion_version=None),
        "metrics": {"accuracy": 0.5, "accuracy_low": 0.4, "accuracy_high": 0.6},
        "mlflow_run_id": client.get_model_version(MODEL, "2").run_id,
        "report": "report.html",
        "seconds": 1.0,
        "goodput": Goodput(total_s=1.0, parts={}),
    }
    return Release(**fields | changes)


def offered(release: Release) -> list[str]:
    return [" ".join(command.split()[1:]) for command, _ in next_commands(release)]


def test_a_finished_run_is_summarised_although_the_disk_is_nearly_full(
    served: tuple[Home, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, client = served
    monkeypatch.setattr(paths, "_NEEDED_BYTES", 1 << 62)  # more than any disk has free
    with pytest.raises(ResourceError, match="MB are free"):
        paths.home_to_write()
    print_release(release_of(client))
    assert f"{MODEL} version 2" in capsys.readouterr().out


_ON_A_FULL_DISK = """
import sys
from training.storage import paths

paths._NEEDED_BYTES = 1 << 62  # more than any disk has free
from flows.cli.main import main

sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.extended
@pytest.mark.parametrize(
    ("arguments", "status"),
    [(["gc"], EXIT_OK), (["rollback", MODEL], EXIT_OK), (["retrain", "digits"], EXIT_RESOURCE)],
)
def test_a_nearly_full_disk_stops_runs_alone(
    served: tuple[Home, Any], arguments: list[str], status: int
) -> None:
    home, client = served
    client.set_registered_model_alias(MODEL, CHAMPION, "2")
    client.set_registered_model_alias(MODEL, PREVIOUS, "1")
    done = subprocess.run(
        [sys.executable, "-c", _ON_A_FULL_DISK, *arguments],
        env=os.environ | {paths.HOME_VARIABLE: str(home.root)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stderr
    assert ("MB are free" in done.stderr) == (status == EXIT_RESOURCE)


def test_only_commands_that_work_are_suggested(served: tuple[Home, Any]) -> None:
    _, client = served
    release = release_of(client)
    assert offered(release) == ["plan digits"]
    client.set_registered_model_alias(MODEL, CHALLENGER, "2")
    score = f"predict {MODEL} IMAGES OUT.parquet"
    assert offered(release) == [f"{score} --alias challenger", "plan digits", "ui"]
    client.set_registered_model_alias(MODEL, CHAMPION, "1")
    assert offered(release) == [score, "plan digits", "ui"]
    # "previous" is the champion's version too, so a rollback is not offered.
    client.set_registered_model_alias(MODEL, PREVIOUS, "1")
    assert offered(release) == [score, "plan digits", "ui"]
    client.set_registered_model_alias(MODEL, CHAMPION, "2")
    assert offered(release) == [score, "plan digits", f"rollback {MODEL}", "ui"]
    client.set_model_version_tag(MODEL, "1", ROLLED_BACK_TAG, "wrong on new cameras")
    assert offered(release) == [score, "plan digits", "ui"]
    client.delete_model_version_tag(MODEL, "1", ROLLED_BACK_TAG)


def test_a_release_in_another_store_suggests_only_a_plan(served: tuple[Home, Any]) -> None:
    home, client = served
    client.set_registered_model_alias(MODEL, CHAMPION, "1")
    assert offered(release_of(client, mlflow_run_id="elsewhere")) == ["plan digits"]
    assert not (home.root / "empty" / "mlflow.db").exists()


def plan_of(recipe: str, home: Home) -> RunPlan:
    _, ref = load(recipe)
    plan = identify(home, ref, tiny_settings(), Digits().fetch(home.sources))
    keep_plan(plan)
    return plan


@pytest.mark.extended
def test_a_recipe_of_the_users_own_is_named_by_its_path(served: tuple[Home, Any], tmp_path: Path) -> None:
    home, client = served
    file = write_recipe(tmp_path / "my recipes", name="scans")
    plan = plan_of(file, home)
    commands = dict(next_commands(release_of(client, "scans", plan.run_key)))
    [command] = [command for command in commands if command.startswith("evergreen plan")]
    arguments = shlex.split(command)[1:]
    done = subprocess.run(
        [sys.executable, "-m", "flows.cli.main", *arguments], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert arguments_of_run(home, "scans", plan.run_key) == [file]
    Path(file).unlink()
    assert arguments_of_run(home, "scans", plan.run_key) == ["path/to/scans.py"]


def test_a_recipe_of_evergreens_is_named_by_its_name(home: Home, tmp_path: Path) -> None:
    assert arguments_of_run(home, "digits", plan_of("digits", home).run_key) == ["digits"]
    assert arguments_of_run(home, "digits", "never ran") == ["digits"]
    own = write_recipe(tmp_path / "own", name="digits")  # a user's recipe may have this name
    assert arguments_of_run(home, "digits", plan_of(own, home).run_key) == [own]


def test_the_place_of_the_data_is_part_of_a_suggested_command(
    served: tuple[Home, Any], tmp_path: Path
) -> None:
    home, client = served
    data = tmp_path / "my data"
    _, ref = load("digits")
    settings = tiny_settings(data={"path": str(data)})
    plan = identify(home, ref, settings, Digits().fetch(home.sources))
    keep_plan(plan)
    commands = [command for command, _ in next_commands(release_of(client, "digits", plan.run_key))]
    assert f"evergreen plan digits --set 'data.path={data}'" in commands


def test_a_level_of_confidence_keeps_its_digits() -> None:
    shares = {"accuracy": 0.97, "accuracy_low": 0.95, "accuracy_high": 0.98}
    assert dict(_scores(shares, 0.995))["test accuracy"].endswith("at 99.5 %)")


def test_the_summary_does_not_interpret_markup(
    served: tuple[Home, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home, client = served
    file = write_recipe(tmp_path / "[red] recipes", name="leaves")
    print_release(release_of(client, "leaves", plan_of(file, home).run_key, report="/data/[x]/report.html"))
    shown = capsys.readouterr().out
    assert f"evergreen plan '{file}'" in shown
    assert "[/not] markup" in shown
    assert "/data/[x]/report.html" in shown
