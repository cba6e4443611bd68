"""Recipes with preprocessors of Ray Data, from training to prediction with raw columns, also by MLflow alone."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
import pytest
from raw_predictions import predicted_elsewhere, raw_rows, write_every_kind

from flows.retrain import retrain
from tasks import predict as step
from tasks.registry.aliases import load_version
from training.data.dataset import open_columns
from training.data.manifest import read_manifest
from training.errors import DataError
from training.records import DatasetVersion, ProblemName, Release
from training.storage.paths import HOME_VARIABLE, Home

RECIPE = """
from ray.data.preprocessors import Chain, Concatenator, MinMaxScaler, OneHotEncoder, OrdinalEncoder
from ray.data.preprocessors import SimpleImputer, StandardScaler

from evergreen import {problem}, Recipe, Table{trainer}


def build_model(shape, outputs):
    from torch import nn

    return nn.Linear(shape[0], outputs)

{function}
recipe = Recipe(
    name="{name}",
    source=Table("every.csv", target="price"),
    problem={problem}(),
    {how},
    preprocessors=[
        Chain(
            SimpleImputer(["weight"], strategy="{strategy}"),
            SimpleImputer(["town", "fragile"], strategy="most_frequent"),
        ),
        StandardScaler(["weight", "count"]),
        MinMaxScaler(["sent"], output_columns=["sent_share"]),
        OneHotEncoder(["town"]),
        OrdinalEncoder(["fragile"]),
        Concatenator(["town", "weight"]),
    ],
)
"""
FUNCTION = """
def transform_rows(rows):
    return rows.assign(count=rows["count"] + rows.weight.fillna(0))

"""
SETTINGS: dict[str, Any] = {
    "scaling": {"num_workers": 0, "use_gpu": "no"},
    "tracking": {"system_metrics": False},
    "gate": {"floor": 0.0},
}
FEATURES = [
    *("count", "fragile", "sent", "seen", "sent_share"),
    *("town_Köln", "town_Ulm", "town_Ōsaka", "weight"),
]


class Trained(NamedTuple):
    """A recipe file, its release, and the dataset version."""

    home: Home
    recipe: Path
    release: Release
    version: DatasetVersion


def write_recipe(folder: Path, problem: ProblemName, strategy: str = "mean", function: bool = False) -> Path:
    name = {"regression": "trees", "classification": "network"}[problem]
    trees = problem == "regression"
    text = RECIPE.format(
        name=name,
        problem=problem.title(),
        trainer=", XGBoost" if trees else ", Torch",
        how="trainer=XGBoost(rounds=6, max_depth=3)" if trees else "trainer=Torch(build_model)",
        strategy=strategy,
        function=FUNCTION if function else "",
    )
    if function:
        text = text.replace("    preprocessors=[", "    transform_rows=transform_rows,\n    preprocessors=[")
    file = folder / f"{name}.py"
    file.write_text(text)
    return file


@pytest.fixture(scope="module", params=["regression", "classification"])
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, prefect_harness: None
) -> Iterator[Trained]:
    pytest.importorskip("xgboost")
    folder = tmp_path_factory.mktemp(request.param)
    write_every_kind(folder / "every.csv", request.param)
    recipe = write_recipe(folder, request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOME_VARIABLE, str(folder / "home"))
        home = Home(folder / "home")
        release = retrain(str(recipe), SETTINGS)
        dataset_folder = home.dataset(recipe.stem, release.dataset_fingerprint)
        yield Trained(home, recipe, release, read_manifest(dataset_folder, release.dataset_fingerprint))


@pytest.mark.extended
def test_the_model_learns_from_the_columns_after_the_steps(trained: Trained) -> None:
    table = trained.version.table
    assert table is not None
    assert [column.name for column in table.columns] == FEATURES
    assert trained.version.shape == (len(FEATURES),)
    columns = open_columns(trained.version, "train")
    inputs = np.asarray(columns.inputs)
    assert inputs.shape == (len(columns), len(FEATURES))
    assert not np.isnan(inputs[:, FEATURES.index("weight")]).any()
    assert set(np.unique(inputs[:, FEATURES.index("town_Ulm")])) == {0, 1}

    raw = pq.read_table(Path(trained.version.path) / trained.version.parts["train"][0].path)
    weight = raw["feature.weight"].to_pandas()
    learn = ~_is_validation(raw)
    filled = weight.fillna(weight[learn].mean())
    scaled = (filled - filled[learn].mean()) / filled[learn].std(ddof=0)
    assert np.allclose(inputs[:, FEATURES.index("weight")], scaled, rtol=1e-5, atol=1e-6)


def _is_validation(raw: Any) -> Any:
    """Mask of validation rows by their digests: the first 8 bytes as a number, of which 24 bits decide."""
    numbers = [int.from_bytes(digest[:8], "little") for digest in raw["digest"].to_pylist()]
    return np.array([number % 2**24 < 0.1 * 2**24 for number in numbers])


def _model_of(trained: Trained) -> Path:
    """The folder of the registered model."""
    files = trained.home.root.rglob("MLmodel")
    (folder,) = (file.parent for file in files if trained.release.mlflow_run_id in file.read_text())
    return folder


@pytest.mark.slow
def test_predict_and_plain_mlflow_take_raw_columns(
    trained: Trained, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    name = trained.recipe.stem
    rows = raw_rows(trained.version).iloc[:12].reset_index(drop=True)
    rows.loc[0, "town"] = "unseen"
    rows.loc[1, "town"] = None
    rows.loc[2, ["weight", "fragile"]] = None
    rows.to_csv(tmp_path / "rows.csv", index=False)
    step.predict.fn(str(trained.home.root), name, str(tmp_path / "rows.csv"), str(tmp_path / "out.parquet"))
    predictions = pq.read_table(tmp_path / "out.parquet")
    assert (
        "column 'town': 1 rows have a category that the model did not learn, such as 'unseen'" in caplog.text
    )
    is_regression = trained.version.problem == "regression"
    ours = (
        np.asarray(predictions["prediction"])
        if is_regression
        else np.stack(predictions["probabilities"].to_numpy())
    )
    model = _model_of(trained)
    theirs = predicted_elsewhere(model, rows, tmp_path)
    assert np.allclose(theirs[2], ours, rtol=1e-6, atol=1e-6)
    described = json.loads((model / "columns.json").read_text())
    assert [column["name"] for column in described["columns"]] == list(rows.columns)
    assert described["made"][FEATURES.index("town_Ulm")]["operations"][-1]["does"] == "equal"


@pytest.mark.extended
def test_the_registered_model_and_the_report_name_the_steps(trained: Trained) -> None:
    model = load_version(trained.home, trained.recipe.stem, "1")
    assert model.table == trained.version.table
    assert model.shape == trained.version.shape
    page = Path(trained.release.report).read_text()
    assert "SimpleImputer(columns=[&#39;weight&#39;], strategy=&#39;mean&#39;)" in page
    if trained.version.problem == "regression":
        assert "town_" in page or "sent_share" in page


@pytest.mark.extended
def test_a_changed_statistic_of_the_registered_model_is_refused(trained: Trained) -> None:
    file = _model_of(trained) / "columns.json"
    text = file.read_text()
    try:
        file.write_text(text.replace('"shift": ', '"shift": 1', 1))
        with pytest.raises(DataError, match=r"columns\.json has other columns than the metadata"):
            load_version(trained.home, trained.recipe.stem, "1")
    finally:
        file.write_text(text)
    load_version(trained.home, trained.recipe.stem, "1")


@pytest.mark.extended
def test_the_second_run_changes_nothing_and_another_step_retrains(trained: Trained) -> None:
    again = retrain(str(trained.recipe), SETTINGS)
    assert (again.version, again.run_key) == (trained.release.version, trained.release.run_key)

    write_recipe(trained.recipe.parent, trained.version.problem, strategy="most_frequent")
    other = retrain(str(trained.recipe), SETTINGS)
    kept = json.loads(trained.home.run(trained.recipe.stem, other.run_key).ingredients.read_text())
    assert (
        "preprocessors.1: SimpleImputer(columns=['weight'], strategy='mean') -> "
        "SimpleImputer(columns=['weight'], strategy='most_frequent')"
    ) in kept["changes"]
    assert other.run_key != trained.release.run_key
    assert other.dataset_fingerprint != trained.release.dataset_fingerprint
    assert any(name.startswith("champion") for name in other.metrics)
