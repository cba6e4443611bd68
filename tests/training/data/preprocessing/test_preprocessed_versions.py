"""Dataset versions of tables with preprocessing: the same part files, and steps fitted without validation rows."""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
from raw_predictions import write_every_kind

from evergreen import Table
from tasks.inference.unlabelled_tables import Tables
from tasks.transform import transform
from training.data.dataset import is_validation, open_columns
from training.data.manifest import read_parts
from training.data.preparation.prepare import plan_shards, write_raw
from training.data.preprocessing.preparation import check_declared
from training.errors import SettingError
from training.plan import RunPlan, identify
from training.preprocessors import declared_steps
from training.recipe import load
from training.recipe_function import recipe_function
from training.records import DatasetVersion
from training.settings.overrides import resolve
from training.storage.paths import Home
from training.table_records import Scale

RECIPE = """
from ray.data.preprocessors import MinMaxScaler, OneHotEncoder, SimpleImputer

from evergreen import Recipe, Regression, Table, XGBoost
{function}
recipe = Recipe(
    "parcels",
    source=Table("every.csv", {source}),
    problem=Regression(),
    trainer=XGBoost(),
    {further}
)
"""
STEPS = """preprocessors=[
        SimpleImputer(["town", "{name}"], strategy="most_frequent"),
        MinMaxScaler(["{name}"]),
        OneHotEncoder(["town"]),
    ],"""
FUNCTION = """

def transform_rows(rows):
    return rows.assign(heavy=rows.weight * 2).drop(columns=["weight", "sent"])

"""


def plan_of(
    home: Home, folder: Path, steps: str, function: bool = False, source: str = 'target="price"'
) -> RunPlan:
    """The plan of a recipe on the table `every.csv` in `folder`."""
    further = steps.format(name="heavy" if function else "weight")
    if function:
        further = f"transform_rows=transform_rows,\n    {further}"
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "every.csv").exists():
        write_every_kind(folder / "every.csv", "regression")
    text = RECIPE.format(function=FUNCTION if function else "", further=further, source=source)
    (folder / "parcels.py").write_text(text)
    recipe, ref = load(str(folder / "parcels.py"))
    settings = resolve(recipe.settings, {"scaling": {"num_workers": 0}}, {})
    return identify(home, ref, settings, recipe.source.fetch(home.sources))


def prepared(plan: RunPlan) -> DatasetVersion:
    """The dataset version, as the flow prepares it."""
    folder = Home(Path(plan.home)).raw_rows(plan.recipe.name, plan.fingerprint)
    shards = plan_shards(plan.files, plan.settings.data)
    raw = [write_raw(plan.files, shard, plan.settings.data, folder) for shard in shards]
    return transform.fn(plan, raw, str(folder))


def test_part_files_are_those_of_the_table_without_steps(home: Home, tmp_path: Path) -> None:
    plain = prepared(plan_of(home, tmp_path, ""))
    plan = plan_of(home, tmp_path, STEPS)
    version = prepared(plan)
    assert version.table is not None
    assert version.table.raw == plain.table
    assert version.parts == plain.parts
    assert version.fingerprint != plain.fingerprint
    assert sorted(path.name for path in Path(version.path).iterdir()) == ["manifest.json", "test", "train"]
    assert plan.find_dataset() == version
    assert Path(version.path) == home.dataset("parcels", version.fingerprint)
    again = prepared(plan_of(Home(tmp_path / "another"), tmp_path, STEPS))
    assert again.table == version.table


def test_values_of_validation_and_test_rows_are_in_no_statistic(home: Home, tmp_path: Path) -> None:
    """With `group=`, a row keeps its role when its values change."""
    weights = np.arange(300) + 0.5
    table = pd.DataFrame(
        {"weight": weights, "town": "Ulm", "id": [f"id {number}" for number in range(300)], "price": weights}
    )
    for folder in (tmp_path / "before", tmp_path / "after"):
        folder.mkdir()
    table.to_csv(tmp_path / "before" / "every.csv", index=False)
    before = prepared(plan_of(home, tmp_path / "before", STEPS, source='target="price", group="id"'))
    train = next(read_parts(before, "train", ["feature.weight", "digest"])).to_pandas()
    learned = train["feature.weight"][~is_validation(_numbers(train["digest"]), 0.1)]
    assert 180 < len(learned) < len(train) < 270

    table.loc[~table.weight.isin(learned), ["weight", "town"]] = [1e6, "Bonn"]
    table.to_csv(tmp_path / "after" / "every.csv", index=False)
    after = prepared(plan_of(home, tmp_path / "after", STEPS, source='target="price", group="id"'))
    assert before.table is not None
    assert after.table is not None
    assert before.fingerprint != after.fingerprint
    made = [version.table.preprocessing.made for version in (before, after)]  # type: ignore[union-attr]
    scale = made[0][0].operations[-1]
    assert scale == Scale(shift=learned.min(), divisor=learned.max() - learned.min())
    assert made[1][0] == made[0][0]
    assert [column.name for column in after.table.columns] == ["weight", "town_Ulm"]


def _numbers(digests: "pd.Series[bytes]") -> npt.NDArray[np.uint64]:
    return np.array([int.from_bytes(digest[:8], "little") for digest in digests], np.uint64)


def test_the_function_runs_before_the_steps_in_training_and_in_prediction(home: Home, tmp_path: Path) -> None:
    plan = plan_of(home, tmp_path, STEPS, function=True)
    version = prepared(plan)
    assert version.table is not None
    names = [column.name for column in version.table.columns]
    assert names == [
        *("count", "town_Köln", "town_Ulm", "town_Ōsaka"),
        *("fragile", "seen", "heavy"),
    ]
    read = Tables(version.table, recipe_function(plan.recipe, plan.paths.recipe))
    (chunk,) = read.find(tmp_path / "every.csv")
    inputs = np.concatenate([batch["inputs"] for batch in read.read(chunk)])
    trained = np.concatenate([open_columns(version, split).inputs for split in ("train", "test")])
    assert inputs.shape == trained.shape
    order, other = (np.lexsort(np.nan_to_num(rows, nan=-9).T) for rows in (inputs, trained))
    assert np.array_equal(inputs[order], trained[other], equal_nan=True)


def test_a_step_that_the_source_rules_out_is_refused_before_the_table_is_prepared(
    home: Home, tmp_path: Path
) -> None:
    write_every_kind(tmp_path / "every.csv", "regression")
    files = Table(tmp_path / "every.csv", "price").fetch(home.sources)
    with pytest.raises(SettingError, match="no column 'wheight' at this step; did you mean 'weight'"):
        check_declared(declared_steps("r", _scaler("wheight")), files)
    with pytest.raises(SettingError, match="no column 'wheight'"):
        prepared(plan_of(home, tmp_path, STEPS.replace("{name}", "wheight")))
    assert not list(home.root.glob("datasets/parcels/*/manifest.json"))


def _scaler(name: str) -> object:
    from ray.data.preprocessors import StandardScaler

    return StandardScaler([name])
