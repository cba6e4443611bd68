"""A plan says in words which rows are new, gone and changed since the recipe's last run."""

import shutil
from pathlib import Path

from small_runs import prepared_from

from tasks.train import keep_data_changes, keep_plan
from training.plan import OTHER_DATA, RunPlan, choose_source, identify
from training.plan_changes import with_data_changes
from training.recipe import load
from training.records import DatasetVersion
from training.settings.overrides import resolve
from training.storage.paths import Home

RECIPE = """
from evergreen import Classification, Recipe, Table, XGBoost

recipe = Recipe(
    name="customers",
    source=Table("customers.csv", target="left", key="id"),
    problem=Classification(),
    trainer=XGBoost(rounds=2),
)
"""


def write_rows(folder: Path, rows: int, more: float = 0.0) -> None:
    lines = [f"{row},{20 + row / 4 + more},{'yes' if row % 3 else 'no'}" for row in range(rows)]
    (folder / "customers.csv").write_text("\n".join(["id,age,left", *lines]) + "\n")


def plan_of(folder: Path, home: Home, test_share: float = 0.2) -> RunPlan:
    (folder / "customers.py").write_text(RECIPE)
    recipe, ref = load(str(folder / "customers.py"))
    chosen = resolve(recipe.settings, {"data": {"test_share": test_share}})
    files = choose_source(recipe, chosen, home).fetch(home.sources / recipe.name)
    return identify(home, ref, chosen, files)


def prepare(plan: RunPlan) -> DatasetVersion:
    return plan.find_dataset() or prepared_from(
        Home(Path(plan.home)), plan.files, plan.recipe.name, plan.settings.data
    )


def test_rows_are_counted_against_the_last_run_once_they_are_prepared(home: Home, tmp_path: Path) -> None:
    write_rows(tmp_path, 100)
    first = keep_plan(plan_of(tmp_path, home))
    assert keep_data_changes(first, prepare(first)).data_changes == ""
    write_rows(tmp_path, 110, more=0.01)
    second = plan_of(tmp_path, home)
    assert second.changes == (OTHER_DATA,)
    assert with_data_changes(second, None).changes == (OTHER_DATA,)
    kept = keep_data_changes(keep_plan(second), prepare(second))
    assert kept.changes == ("data: 100 rows changed, 10 new, 0 removed",)
    # A restart of the run, whose own plan is now the newest, says the same.
    assert keep_data_changes(keep_plan(plan_of(tmp_path, home)), prepare(second)) == kept


def test_settings_that_change_no_row_are_said(home: Home, tmp_path: Path) -> None:
    write_rows(tmp_path, 100)
    first = keep_plan(plan_of(tmp_path, home))
    prepare(first)
    second = plan_of(tmp_path, home, test_share=0.3)
    assert with_data_changes(second, prepare(second)).data_changes.startswith(
        "the same rows as in the last run"
    )


def test_rows_of_the_last_run_that_are_gone_are_said(home: Home, tmp_path: Path) -> None:
    write_rows(tmp_path, 100)
    first = keep_plan(plan_of(tmp_path, home))
    shutil.rmtree(prepare(first).path)
    write_rows(tmp_path, 110)
    second = plan_of(tmp_path, home)
    assert "no longer in this home" in with_data_changes(second, prepare(second)).data_changes
