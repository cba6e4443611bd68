"""A regression on real pictures, from files to a rollback; predictions are compared with the weights' arithmetic."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pictures_with_numbers import TARGET, pixels_of, write_folder, write_parquet
from registered import rows_of
from safetensors.numpy import load_file

from flows.retrain import retrain
from tasks import predict as predict_step
from tasks import rollback as rollback_step
from tasks.registry.aliases import load_version
from tasks.verify import verify
from training.data.columns import open_columns
from training.data.manifest import read_manifest
from training.errors import SettingError
from training.records import DatasetVersion, Release
from training.storage.paths import HOME_VARIABLE, Home

ROWS = 300
RECIPE = """
from torch import nn

from evergreen import Augmentation, ImageFolder, Recipe, Regression


def build_model(shape, outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], outputs))


recipe = Recipe(
    name="ink",
    source=ImageFolder({path!r}, target="ink"),
    problem=Regression(),
    build_model=build_model,
    augmentation=Augmentation(shift=1),
)
"""
SETTINGS: dict[str, Any] = {
    "scaling": {"num_workers": 0, "use_gpu": "no"},
    "training": {"global_batch_size": 32, "learning_rate": 0.02, "epochs": 4},
    "tracking": {"system_metrics": False},
    "gate": {"floor": 0.0},
}
LONGER = {**SETTINGS, "training": {**SETTINGS["training"], "epochs": 25}, "gate": {"floor": 0.5}}


@pytest.fixture(scope="module")
def project_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the recipe, the pictures, and the home."""
    folder = tmp_path_factory.mktemp("ink")
    (folder / "ink.py").write_text(RECIPE.format(path=str(write_folder(folder / "scans", ROWS))))
    return folder


@pytest.fixture(scope="module")
def releases(project_folder: Path, prefect_harness: None) -> Iterator[tuple[Release, Release]]:
    """A model of few epochs, and then one of more epochs, which replaces the first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOME_VARIABLE, str(project_folder / "home"))
        recipe = str(project_folder / "ink.py")
        yield retrain(recipe, SETTINGS), retrain(recipe, LONGER)


def home_of(project_folder: Path) -> Home:
    return Home(project_folder / "home")


def dataset_of(project_folder: Path, release: Release) -> DatasetVersion:
    folder = home_of(project_folder).dataset("ink", release.dataset_fingerprint)
    return read_manifest(folder, release.dataset_fingerprint)


@pytest.mark.extended
def test_the_better_model_is_champion(releases: tuple[Release, Release]) -> None:
    first, second = releases
    assert (first.alias, second.alias, second.version) == ("champion", "champion", "2")
    assert second.metrics["rmse"] < first.metrics["rmse"] == second.metrics["champion_rmse"]
    assert second.metrics["r2"] > 0.5
    assert second.metrics["mae"] < second.metrics["rmse"]


@pytest.mark.extended
def test_predictions_are_in_the_unit_of_the_target(
    releases: tuple[Release, Release], project_folder: Path, tmp_path: Path
) -> None:
    home, version = home_of(project_folder), dataset_of(project_folder, releases[1])
    weights = load_file(home.run("ink", releases[1].run_key).model / "weights.safetensors")
    assert version.table is not None

    def by_hand(pixels: np.ndarray) -> np.ndarray:
        scaled = (pixels.reshape(len(pixels), -1) / 255 - version.mean[0]) / version.std[0]
        output = scaled @ weights["1.weight"][0] + weights["1.bias"]
        return output * version.table.target_std + version.table.target_mean

    pixels = pixels_of(ROWS)
    for source in (project_folder / "scans", write_parquet(tmp_path / "scans.parquet", ROWS)):
        output = tmp_path / f"{source.name}.out"
        summary = predict_step.predict.fn(str(home.root), "ink", str(source), str(output))
        rows = rows_of(output)
        assert list(rows[0]) == ["where", "prediction", "model", "version"]
        assert (summary.rows, summary.unit, summary.counts) == (ROWS, "images", {})
        order = [int(Path(row["where"]).stem) for row in rows] if source.is_dir() else range(ROWS)
        assert np.allclose([row["prediction"] for row in rows], by_hand(pixels)[list(order)], rtol=1e-5)
    test = open_columns(version, "test")
    errors = by_hand(test.inputs[:, 0]) - test.targets
    assert np.sqrt(np.mean(errors**2)) == pytest.approx(releases[1].metrics["rmse"], rel=1e-4)
    assert np.abs(errors).mean() == pytest.approx(releases[1].metrics["mae"], rel=1e-4)


@pytest.mark.extended
def test_the_report_shows_the_worst_pictures(releases: tuple[Release, Release], project_folder: Path) -> None:
    page = Path(releases[1].report).read_text()
    assert "Predicted against true" in page
    assert "target ink, images of 8 × 8 pixels with 1 channel" in page
    assert page.count('<img class="example pixelated" src="data:image/png;base64,') == 24
    figures = home_of(project_folder).run("ink", releases[1].run_key).figures
    assert {"largest_errors.png", "predicted_against_true.png"} <= {file.name for file in figures.iterdir()}


@pytest.mark.extended
def test_every_promise_is_kept(releases: tuple[Release, Release], project_folder: Path) -> None:
    home = home_of(project_folder)
    for release in releases:
        findings = verify(home.run("ink", release.run_key), home, None, None)
        assert [finding for finding in findings if finding.ok is False] == []


@pytest.mark.extended
def test_the_registered_model_names_its_target(
    releases: tuple[Release, Release], project_folder: Path
) -> None:
    registered = load_version(home_of(project_folder), "ink", "2")
    assert (registered.problem, registered.classes, registered.shape) == ("regression", (), (1, 8, 8))
    assert registered.table is not None
    assert (registered.table.target, registered.outputs) == (TARGET, 1)


@pytest.mark.extended
def test_nothing_changed_is_said_and_another_target_is_not_compared(
    releases: tuple[Release, Release], project_folder: Path
) -> None:
    recipe = project_folder / "ink.py"
    again = retrain(str(recipe), LONGER)
    assert (again.run_key, again.version) == (releases[1].run_key, "2")
    table = project_folder / "scans" / "ages.csv"
    table.write_text((project_folder / "scans" / "metadata.csv").read_text().replace("ink", "age"))
    other = project_folder / "age.py"
    other.write_text(recipe.read_text().replace('target="ink"', 'target="age", targets="ages.csv"'))
    with pytest.raises(
        SettingError, match=r"champion ink version 2 predicts 'ink', the recipe's target is 'age'"
    ):
        retrain(str(other), LONGER)


@pytest.mark.extended
def test_a_rollback_restores_the_first_model(releases: tuple[Release, Release], project_folder: Path) -> None:
    root = str(home_of(project_folder).root)
    assert rollback_step.rollback.fn(root, "ink", "") == ("2", "1")
    assert rollback_step.rollback.fn(root, "ink", "", to="2") == ("1", "2")
