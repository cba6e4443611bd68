"""What the commands say of tables, regressions and XGBoost: plan, summary, help, list of recipes."""

import json
import re
from contextlib import suppress
from pathlib import Path

import pytest

from flows.cli.help import settings_help
from flows.cli.main import main
from flows.cli.summary import print_preview, print_release
from flows.preview import preview
from tasks.terminal.next_commands import next_commands
from tasks.train import keep_plan
from training.errors import SettingError
from training.plan import RunPlan, identify
from training.recipe import BUILT_IN, load
from training.records import Goodput, Release, Verdict
from training.seams import TRAINERS
from training.settings.overrides import resolve
from training.settings.schema import Settings, section_of_trainer
from training.storage.paths import Home

_RECIPE = """
from evergreen import BundledTable, Recipe, Regression, XGBoost

recipe = Recipe(name="progress", source=BundledTable("diabetes"), problem=Regression(), trainer=XGBoost(rounds=70))
"""


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    file = tmp_path / "progress.py"
    file.write_text(_RECIPE)
    return str(file)


def planned(recipe: str, home: Home) -> RunPlan:
    loaded, ref = load(recipe)
    settings = resolve(loaded.settings, {"scaling": {"num_workers": 1}})
    return identify(home, ref, settings, loaded.source.fetch(home.sources / "progress"))


def test_a_plan_of_trees_has_rounds_and_no_batch(
    recipe: str, home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    made = preview(recipe, {"scaling": {"num_workers": 1}}, home)
    print_preview(made)
    rows = dict(
        line.split("  ", 1)
        for line in capsys.readouterr().out.splitlines()
        if "  " in line and line[0] != " "
    )
    assert "batch" not in rows
    assert rows["steps"].strip() == "70 rounds on all rows"
    assert rows["after a kill"].strip() == "resumes at the newest saved block of rounds, to the same bits"
    assert (made.global_batch_size, made.epochs, made.trainer) == (None, 70, "xgboost")
    assert made.settings["training.rounds"] == 70


@pytest.mark.parametrize(("option", "hinted"), [("", True), (', key="id"', False), (', drop=["id"]', True)])
def test_a_plan_proposes_a_key_to_a_table_without_one(
    option: str, hinted: bool, tmp_path: Path, home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{3 * row},{row % 9},{row % 7}" for row in range(90)]
    (tmp_path / "orders.csv").write_text("\n".join(["id,size,price", *rows]))
    recipe = tmp_path / "orders.py"
    recipe.write_text(
        _RECIPE.replace("BundledTable", "Table").replace(
            'Table("diabetes")', f'Table("orders.csv", target="price"{option})'
        )
    )
    print_preview(preview(str(recipe), {"scaling": {"num_workers": 1}}, home))
    line = 'hint column id is unique: Table(..., key="id") keeps each row in its split when other columns of the row'
    assert (line in " ".join(capsys.readouterr().out.split())) is hinted


def test_a_plan_that_may_end_early_says_so(
    recipe: str, home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    made = preview(recipe, {"scaling": {"num_workers": 1}, "training": {"early_stopping_rounds": 5}}, home)
    print_preview(made)
    said = "at most 70 rounds on all rows; fewer if the validation loss does not improve for 5 rounds"
    assert said in capsys.readouterr().out
    assert (made.epochs, made.patience) == (70, 5)


@pytest.mark.parametrize(
    ("feed", "promise"),
    [
        ("memory", "resumes at the newest saved step, to the same bits"),
        ("stream", "resumes at the newest saved epoch, to a model that may differ in its last bits"),
    ],
)
def test_a_plan_says_what_a_kill_costs(feed: str, promise: str, home: Home) -> None:
    assert (
        preview("digits", {"scaling": {"num_workers": 1}, "data": {"feed": feed}}, home).after_kill == promise
    )
    shards = {"scaling": {"num_workers": 1}, "training": {"virtual_shards": 2}}
    assert preview("digits", shards, home).after_kill.endswith("any number of workers gives these bits")


def test_the_settings_of_another_trainer_are_refused(recipe: str, home: Home) -> None:
    with pytest.raises(SettingError, match=r"training\.epochs: no such setting"):
        preview(recipe, {"training": {"epochs": 3}}, home)


def release_of(plan: RunPlan) -> Release:
    metrics = {"rmse": 1234.5, "rmse_low": 1200.0, "rmse_high": 1270.25, "mae": 800.5, "r2": 0.45678}
    return Release(
        recipe="progress",
        run_key=plan.run_key,
        dataset_fingerprint=plan.fingerprint,
        weights_digest="0" * 64,
        model="progress",
        version="2",
        alias="champion",
        train_rows=300,
        test_rows=142,
        epochs=70,
        selected_epoch=41,
        verdict=Verdict(promote=True, summary="Promoted", rules=(), champion_version="1"),
        evaluation="",
        metrics=metrics | {"champion_rmse": 1300.0},
        mlflow_run_id="0",
        report="report.html",
        seconds=10.0,
        goodput=Goodput(total_s=10.0, parts={"compute": 10.0}),
    )


def test_the_summary_of_a_regression(recipe: str, home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    plan = planned(recipe, home)
    keep_plan(plan)
    release = release_of(plan)
    print_release(release)
    out = " ".join(capsys.readouterr().out.split())
    assert "test RMSE 1,234 (1,200 to 1,270 at 95 %) champion 1,300" in out
    assert "test R² 0.4568, mean absolute error 800.5" in out
    assert "rounds 70, trees of the first 41 rounds data" in out
    assert "300 train and 142 test rows" in out
    assert "accuracy" not in out
    assert not any("IMAGES" in command for command, _ in next_commands(release))
    print_release(release.model_copy(update={"stopped": "stopped at round 70: why"}))
    out = " ".join(capsys.readouterr().out.split())
    assert "rounds 70, trees of the first 41 rounds; stopped at round 70: why data" in out


def test_the_help_lists_the_settings_of_every_trainer() -> None:
    text = settings_help()
    lines = [line.strip() for line in text.splitlines()]
    sections = [section_of_trainer(name) for name in TRAINERS]
    fields = {name for section in sections for name in section.model_fields}
    assert [name for name in fields if f"training.{name}" not in lines] == ["trainer"]
    assert lines.count("training.learning_rate") == sum(
        "learning_rate" in section.model_fields for section in sections
    )
    assert set(Settings.model_fields) - {"seed"} <= {line.partition(":")[0] for line in lines}
    assert "Discriminator" not in text
    assert max(map(len, text.splitlines())) <= 120


@pytest.mark.parametrize("command", ["retrain", "plan"])
def test_the_help_after_a_recipe_lists_that_recipe_s_settings(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with suppress(SystemExit):
        main([command, "breast-cancer", "--help"])
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert "settings of recipe breast-cancer, trainer xgboost (--set NAME=VALUE):" in lines
    assert lines.count("training.max_depth") == 1
    assert "training.rounds" in lines
    assert "training.epochs" not in lines
    rounds = lines[lines.index("training.rounds") + 1]
    assert rounds.endswith(f"(default: {load('breast-cancer')[0].settings.epochs})")


def test_the_help_shows_no_password_of_the_recipe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "secret.py"
    file.write_text(
        "from evergreen import Digits, Recipe, Settings, TrackingSettings\n"
        "settings = Settings(tracking=TrackingSettings(uri='https://me:hunter2@mlflow.example'))\n"
        "recipe = Recipe('secret', source=Digits(), settings=settings)\n"
    )
    with suppress(SystemExit):
        main(["retrain", str(file), "--help"])
    out = capsys.readouterr().out
    assert "mlflow.example" in out
    assert "hunter2" not in out


def test_the_help_says_why_a_recipe_can_t_be_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    with suppress(SystemExit):
        main(["retrain", "digitz", "--help"])
    out = capsys.readouterr().out
    assert "recipe 'digitz': no such recipe" in out
    assert "training.learning_rate" in out


def test_recipes_are_listed_with_problem_and_trainer(capsys: pytest.CaptureFixture[str]) -> None:
    main(["recipes", "--json"])
    out = capsys.readouterr().out
    listed = {description["name"]: description for description in json.loads(out.splitlines()[-1])}
    assert set(listed) == set(BUILT_IN)
    assert (listed["digits"]["problem"], listed["digits"]["trainer"]) == ("classification", "torch")
    assert (listed["diabetes"]["problem"], listed["diabetes"]["trainer"]) == ("regression", "torch")
    assert listed["breast-cancer"]["trainer"] == "xgboost"
    assert re.search(r"^diabetes +regression +torch ", out, re.MULTILINE)
    promised = {key: listed["breast-cancer"][key] for key in ("resumes", "same_bits_after_kill", "extra")}
    assert promised == {"resumes": "round", "same_bits_after_kill": True, "extra": "boosting"}
    assert (listed["digits"]["extra"], listed["digits-lightning"]["extra"]) == ("", "lightning")
    assert (listed["digits-keras"]["extra"], listed["digits-tensorflow"]["extra"]) == ("keras", "tensorflow")
    assert (listed["digits-accelerate"]["extra"], listed["dreambooth"]["extra"]) == (
        "accelerate",
        "diffusion",
    )
