"""Models on tables, retrained and asked for predictions of new CSV rows, compared with the models' own arithmetic."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from registered import rows_of

from flows.cli.summary import print_prediction
from flows.retrain import retrain
from tasks import predict as step
from training.errors import DataError
from training.records import Release
from training.storage.paths import HOME_VARIABLE, Home

COLOURS = ("blue", "green", "red")
REGRESSION = """
from evergreen import Recipe, Regression, Table, XGBoost

recipe = Recipe(
    name="prices",
    source=Table({path!r}, target="price", drop=["size"]),
    problem=Regression(),
    trainer=XGBoost(max_depth=3, rounds=8),
)
"""
CLASSIFICATION = """
from torch import nn

from evergreen import Classification, Recipe, Table, Torch


def build_model(shape, outputs):
    return nn.Linear(shape[0], outputs)


recipe = Recipe(
    name="sizes",
    source=Table({path!r}, target="size", drop=["price"]),
    problem=Classification(),
    trainer=Torch(build_model),
)
"""
NEW = """id,weight,fragile,colour,sent
1,2.5,true,red,2024-01-15
2,,false,blue,2024-02-01T12:00
3,7.25,NA,,
4,1e1,true,purple,2024-03-01
"""
# NEW as the model takes it: number, 0 or 1, number of the category, days since 1970; NaN for missing and purple.
ENCODED = np.array(
    [[2.5, 1, 2, 19737], [np.nan, 0, 0, 19754.5], [7.25, np.nan, np.nan, np.nan], [10, 1, np.nan, 19783]],
    np.float32,
)
WHERE = ["new.csv:1", "new.csv:2", "new.csv:3", "new.csv:4"]


def write_source(file: Path, rows: int = 400) -> Path:
    """Parcels: the price grows with the weight, and the size with both weight and colour."""
    random = np.random.default_rng(0)
    weight = random.uniform(0, 12, rows).round(3)
    fragile = random.random(rows) < 0.3
    colour = random.choice(COLOURS, rows)
    price = 3 * weight + 5 * fragile + random.normal(0, 0.5, rows)
    days = random.integers(0, 300, rows)
    sent = (np.datetime64("2023-06-01") + days).astype(str)
    size = np.where(weight + 2 * (colour == "red") > 6, "large", "small")
    lines = [
        f"{w},{str(f).lower()},{c},{s},{p:.2f},{z}"
        for w, f, c, s, p, z in zip(weight, fragile, colour, sent, price, size, strict=True)
    ]
    file.write_text("\n".join(["weight,fragile,colour,sent,price,size", *lines]) + "\n")
    return file


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, prefect_harness: None) -> Iterator[dict[str, Release]]:
    """Releases of the two recipes, in a home of this module."""
    pytest.importorskip("xgboost")
    folder = tmp_path_factory.mktemp("parcels")
    path = str(write_source(folder / "parcels.csv"))
    settings = {
        "scaling": {"num_workers": 0},
        "tracking": {"system_metrics": False},
        "gate": {"floor": 0.0},
    }
    releases = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOME_VARIABLE, str(folder / "home"))
        for name, text in (("prices", REGRESSION), ("sizes", CLASSIFICATION)):
            recipe = folder / f"{name}.py"
            recipe.write_text(text.format(path=path))
            releases[name] = retrain(str(recipe), settings)
        yield releases


@pytest.fixture
def predict(trained: dict[str, Release]) -> Callable[..., step.PredictionSummary]:
    """Return the predict step with the home of `trained`."""

    def run(model: str, source: Path, output: Path, **options: Any) -> step.PredictionSummary:
        return step.predict.fn(str(_home(trained).root), model, str(source), str(output), **options)

    return run


def _home(trained: dict[str, Release]) -> Home:
    return Home(Path(trained["prices"].report).parents[3])


def _new(folder: Path) -> Path:
    file = folder / "new.csv"
    file.write_text(NEW)
    return file


@pytest.mark.extended
def test_xgboost_predicts_what_its_trees_say(
    trained: dict[str, Release], predict: Callable[..., step.PredictionSummary], tmp_path: Path
) -> None:
    import xgboost

    summary = predict("prices", _new(tmp_path), tmp_path / "result.parquet")
    rows = rows_of(tmp_path / "result.parquet")
    booster = xgboost.Booster(
        model_file=_home(trained).run("prices", trained["prices"].run_key).model / "model.ubj"
    )
    names = ["weight", "fragile", "colour", "sent"]
    matrix = xgboost.DMatrix(
        ENCODED, feature_names=names, feature_types=["q", "q", "c", "q"], enable_categorical=True
    )
    wanted = booster.predict(matrix)
    assert np.allclose([row["prediction"] for row in rows], wanted, rtol=1e-6)
    assert len(set(wanted)) == len(wanted)  # the rows can be told apart
    assert [row["where"] for row in rows] == WHERE
    assert list(rows[0]) == ["where", "prediction", "model", "version"]
    assert (summary.rows, summary.unit, summary.counts) == (4, "rows", {})
    assert summary.unknown_categories == {"colour": 1}
    assert (summary.least, summary.most) == (min(wanted), max(wanted))
    assert summary.mean == pytest.approx(float(np.mean(wanted)))


@pytest.mark.extended
def test_a_network_predicts_what_its_weights_say(
    trained: dict[str, Release], predict: Callable[..., step.PredictionSummary], tmp_path: Path
) -> None:
    from safetensors.numpy import load_file

    summary = predict("sizes", _new(tmp_path), tmp_path / "result")
    rows = rows_of(tmp_path / "result")
    home, release = _home(trained), trained["sizes"]
    train = pq.read_table(home.dataset("sizes", release.dataset_fingerprint) / "train")
    features = np.zeros((4, 6))
    for feature, column, name in ((0, 0, "weight"), (1, 1, "fragile"), (5, 3, "sent")):
        values = train[f"feature.{name}"]
        if name == "sent":
            values = values.cast(pa.timestamp("s")).cast(pa.int64())
        known = np.array(values.to_pylist(), float) / (86400 if name == "sent" else 1)
        features[:, feature] = np.nan_to_num((ENCODED[:, column] - known.mean()) / known.std())
    for number in range(len(COLOURS)):
        features[:, 2 + number] = ENCODED[:, 2] == number
    weights = load_file(home.run("sizes", release.run_key).model / "weights.safetensors")
    logits = features @ weights["weight"].T + weights["bias"]
    wanted = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    assert np.allclose([row["probabilities"] for row in rows], wanted, atol=1e-5)
    assert [row["class"] for row in rows] == [("large", "small")[best] for best in wanted.argmax(axis=1)]
    assert [row["where"] for row in rows] == WHERE
    assert sum(summary.counts.values()) == summary.rows == 4
    assert (summary.mean, summary.least, summary.most) == (None, None, None)


@pytest.mark.extended
def test_columns_that_the_model_does_not_use_are_ignored(
    predict: Callable[..., step.PredictionSummary], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = write_source(tmp_path / "again.csv")
    with caplog.at_level(logging.INFO, "evergreen.predict"):
        summary = predict("prices", source, tmp_path / "result.parquet")
    said = [record.getMessage() for record in caplog.records]
    assert "columns that the model does not use are ignored: 'size'" in said
    assert any(line.startswith("400 rows are scored in this process") for line in said)
    prices = [float(line.split(",")[4]) for line in source.read_text().splitlines()[1:]]
    predicted = np.array([row["prediction"] for row in rows_of(tmp_path / "result.parquet")])
    assert summary.rows == 400
    assert np.corrcoef(predicted, prices)[0, 1] > 0.9  # each row got its own prediction


@pytest.mark.extended
def test_refused_inputs_leave_no_result(
    predict: Callable[..., step.PredictionSummary], tmp_path: Path
) -> None:
    file = _new(tmp_path)
    file.write_text(NEW.replace("7.25", "heavy"))
    with pytest.raises(DataError, match=r"new\.csv row 3: column 'weight' has 'heavy'"):
        predict("prices", file, tmp_path / "result.parquet")
    file.write_text(NEW.replace("weight", "mass"))
    with pytest.raises(DataError, match=r"new\.csv: no column 'weight'"):
        predict("prices", file, tmp_path / "result.parquet")
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.usefixtures("ray_session")
@pytest.mark.slow
def test_ray_gives_the_same_rows_in_the_same_order(
    predict: Callable[..., step.PredictionSummary], tmp_path: Path
) -> None:
    random = np.random.default_rng(1)
    source = tmp_path / "new"
    source.mkdir()
    for part in range(2):
        count = 3000
        weight = random.uniform(0, 12, count).round(3).astype(str)
        weight[part + 7] = "heavy"
        table = pa.table(
            {
                "weight": weight,
                "fragile": random.random(count) < 0.5,
                "colour": random.choice([*COLOURS, "purple"], count),
                "sent": pa.array(random.integers(19000, 20000, count), pa.int32()).cast(pa.date32()),
            }
        )
        pq.write_table(table, source / f"{part}.parquet", row_group_size=700)
    on_ray = predict("prices", source, tmp_path / "ray.parquet", with_ray=True, skip_bad=True)
    here = predict("prices", source, tmp_path / "here.parquet", with_ray=False, skip_bad=True)
    theirs, ours = (pq.read_table(tmp_path / f"{name}.parquet") for name in ("ray", "here"))
    assert theirs == ours
    assert (on_ray.rows, on_ray.skipped) == (here.rows, here.skipped) == (5998, 2)
    assert on_ray.unknown_categories == here.unknown_categories
    assert 1000 < here.unknown_categories["colour"] < 2000
    assert (on_ray.least, on_ray.most) == (here.least, here.most)
    assert on_ray.mean == pytest.approx(here.mean, rel=1e-12)


@pytest.mark.extended
def test_the_printed_summary(
    predict: Callable[..., step.PredictionSummary], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = predict("prices", _new(tmp_path), tmp_path / "result.parquet")
    print_prediction(summary)
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("4 rows scored by prices version 1 in ")
    assert f"mean prediction {summary.mean:.6g}" in said
    assert "1 rows in column colour" in said
