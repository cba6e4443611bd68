"""`predict` applies the function `transform_rows` of the recipe that made the version, and refuses without its code."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small_runs import write_recipe

from tasks.inference.changed_rows import ChangedImages, function_of
from tasks.inference.unlabelled_images import Images
from tasks.inference.unlabelled_tables import Tables
from tasks.registry.safe_loading import TRANSFORM_TAG
from tasks.trackers.mlflow_run import RUN_KEY_TAG
from training.data.sources.digits import Digits
from training.errors import SettingError
from training.plan import RunPlan, identify
from training.recipe import load
from training.recipe_function import recipe_function
from training.recipe_sources import RecipeRef
from training.records import TableColumn, TableSchema
from training.settings.schema import Settings
from training.storage.paths import Home
from training.storage.record_files import record_text


def recipe_with(folder: Path, function: str) -> RecipeRef:
    file = Path(write_recipe(folder, name="changed"))
    text = function + file.read_text()
    file.write_text(
        text.replace("build_model=build_model", "build_model=build_model, transform_rows=transform_rows")
    )
    return load(str(file))[1]


def finished_run(home: Home, ref: RecipeRef) -> RunPlan:
    """A plan in the home, with the copy of the recipe that every run keeps."""
    plan = identify(home, ref, Settings(), Digits().fetch(home.sources))
    plan.paths.root.mkdir(parents=True)
    plan.paths.ingredients.write_text(record_text(plan.paths.ingredients.name, plan, plan.paths.root.name))
    assert recipe_function(ref, plan.paths.recipe) is not None
    return plan


def test_images_are_changed_by_the_code_that_the_run_kept(home: Home, tmp_path: Path) -> None:
    ref = recipe_with(tmp_path / "recipe", "def transform_rows(images):\n    return 255 - images\n")
    plan = finished_run(home, ref)
    Path(ref.path).write_text("the recipe was changed since")
    tags = {TRANSFORM_TAG: ref.transform, RUN_KEY_TAG: plan.run_key}
    function = function_of(home, tags, "model changed version 1")
    assert function is not None
    pixels = np.arange(64, dtype=np.uint8).reshape(8, 8)
    (tmp_path / "images").mkdir()
    Image.fromarray(pixels).save(tmp_path / "images" / "a.png")
    (tmp_path / "images" / "b.png").write_bytes(b"no image")
    reader = ChangedImages(Images((1, 8, 8)), function)
    (batch,) = [batch for chunk in reader.find(tmp_path / "images") for batch in reader.read(chunk)]
    assert np.array_equal(batch["inputs"][0, 0], 255 - pixels)
    assert "b.png" in batch["error"][1]


def test_rows_of_a_table_are_changed_from_the_columns_of_the_source(home: Home, tmp_path: Path) -> None:
    body = "def transform_rows(rows):\n    return rows.assign(c=rows.a.astype(int) * 2 + rows.b).drop(columns=['a'])\n"
    ref = recipe_with(tmp_path / "recipe", body)
    plan = finished_run(home, ref)
    function = function_of(home, {TRANSFORM_TAG: ref.transform, RUN_KEY_TAG: plan.run_key}, "model")
    columns = tuple(TableColumn(name=name, kind="number") for name in ("b", "c"))
    schema = TableSchema(target="y", columns=columns, given={"a": "number", "b": "number"})
    (tmp_path / "rows.csv").write_text("b,a\n1,10\n3,text\n2,20\n")
    reader = Tables(schema, function)
    (batch,) = [batch for chunk in reader.find(tmp_path / "rows.csv") for batch in reader.read(chunk)]
    assert batch["inputs"][[0, 2]].tolist() == [[1, 21], [2, 42]]
    assert "rows.csv row 2: column 'a' has 'text'" in batch["error"][1], "the function gets no missing number"
    assert [bool(error) for error in batch["error"]] == [False, True, False]


def test_a_version_without_a_function_needs_no_code(home: Home) -> None:
    assert function_of(home, {RUN_KEY_TAG: "0" * 64}, "model") is None


@pytest.mark.parametrize("key", ["0" * 64, "*", "../" * 8, ""])
def test_a_home_without_the_code_refuses(home: Home, key: str) -> None:
    with pytest.raises(SettingError, match=r"model m version 3: its recipe's function transform_rows"):
        function_of(home, {TRANSFORM_TAG: "1" * 64, RUN_KEY_TAG: key}, "model m version 3")


def test_schemas_of_an_older_version_are_read() -> None:
    assert TableSchema.model_validate({"target": "y", "columns": []}).given == {}


def test_a_value_that_the_function_can_not_compute_is_the_error_of_its_row(
    home: Home, tmp_path: Path
) -> None:
    body = "def transform_rows(rows):\n    return rows.assign(q=rows.a / rows.b)\n"
    ref = recipe_with(tmp_path / "recipe", body)
    plan = finished_run(home, ref)
    function = function_of(home, {TRANSFORM_TAG: ref.transform, RUN_KEY_TAG: plan.run_key}, "model")
    columns = tuple(TableColumn(name=name, kind="number") for name in ("a", "b", "q"))
    schema = TableSchema(target="y", columns=columns, given={"a": "number", "b": "number"})
    (tmp_path / "rows.csv").write_text("a,b\ntext,1\n4,2\n4,0\n")
    reader = Tables(schema, function)
    (batch,) = [batch for chunk in reader.find(tmp_path / "rows.csv") for batch in reader.read(chunk)]
    assert [bool(error) for error in batch["error"]] == [True, False, True]
    assert batch["inputs"][1].tolist() == [4, 2, 2]
    assert "rows.csv row 3: " in batch["error"][2]
    assert "transform_rows" in batch["error"][2]
    assert "column 'q' has inf" in batch["error"][2]
