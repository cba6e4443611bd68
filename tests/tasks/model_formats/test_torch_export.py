"""A network on a table as a registered model: plain MLflow predicts the same numbers from columns by name."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version as installed
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from small_runs import job_for, prepared
from small_tables import described, values

from tasks.model_formats import torch_export
from tasks.model_formats.base import metadata_of
from tasks.trackers.mlflow_run import connect
from training.data.dataset import open_columns
from training.data.sources.sklearn_tables import BundledTable
from training.errors import DataError
from training.recipe import load
from training.records import DatasetVersion
from training.settings.overrides import resolve
from training.storage.paths import Home
from training.supervision.launch import launch
from training.trainers.torch.serving import predictor, with_inputs

# Reads rows as a JSON list, and predicts from a data frame of float32 whose columns are in the reverse order.
_PREDICT = """
import json, sys, mlflow.pyfunc, numpy, pandas
model = mlflow.pyfunc.load_model(sys.argv[1])
names = model.metadata.signature.inputs.input_names()
rows = numpy.array(json.load(sys.stdin), numpy.float32)
found = [model.predict(pandas.DataFrame(rows[:n], columns=names)[names[::-1]]) for n in (1, 3, len(rows))]
ours = [name for name in sys.modules if name.partition(".")[0] in ("evergreen", "training", "tasks", "flows")]
assert not ours, ours
print(json.dumps([numpy.asarray(one).tolist() for one in found]))
"""


def new_run(home: Home) -> str:
    client = connect(None, home)
    place = client.create_experiment("tables", artifact_location=home.mlflow_artifacts.as_uri())
    return str(client.create_run(place).info.run_id)


def logged(home: Home) -> Path:
    (described_by,) = home.mlflow_artifacts.rglob("MLmodel")
    return described_by.parent


def predicted_without_evergreen(folder: Path, inputs: np.ndarray, aside: Path) -> list[np.ndarray]:
    done = subprocess.run(
        [sys.executable, "-c", _PREDICT, str(folder)],
        input=json.dumps(inputs.tolist()),
        cwd=aside,
        env={"PATH": "/usr/bin:/bin", "HOME": str(aside), "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [np.array(one) for one in json.loads(done.stdout.splitlines()[-1])]


def found_foreign(folder: Path) -> str | None:
    return torch_export.find_foreign(folder, yaml.safe_load((folder / "MLmodel").read_text())["flavors"])


@pytest.fixture
def classifier(home: Home) -> tuple[Path, DatasetVersion, torch.nn.Module]:
    """The folder of a logged classifier on a table, which was not trained."""
    version = described(values())
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 2))
    module = with_inputs(network, version)
    torch_export.log_serving_model(new_run(home), module, version, values(4), metadata_of(version))
    return logged(home), version, module


def test_a_trained_regression_gives_the_same_numbers_without_evergreen(home: Home, tmp_path: Path) -> None:
    version = prepared(home, BundledTable("diabetes"), "diabetes", problem="regression")
    recipe, _ = load("diabetes")
    here = {"scaling": {"num_workers": 0, "use_gpu": "no"}, "training": {"epochs": 1}}
    trained = launch(job_for(home, version, resolve(recipe.settings, here), "diabetes"))
    inputs = np.array(open_columns(version, "test").inputs[:50])
    inputs[1] = np.nan
    run, example = new_run(home), inputs[:4]
    uri = torch_export.log_model(run, recipe, version, trained, example, metadata_of(version))
    assert uri.startswith("models:/")
    folder = logged(home)
    wanted = torch_export.predictor(recipe, version, trained)(inputs)
    assert wanted.shape == (50,)
    for found in predicted_without_evergreen(folder, inputs, tmp_path):
        np.testing.assert_allclose(found.ravel(), wanted[: len(found)], rtol=1e-5)
    assert found_foreign(folder) is None
    weights = folder / torch_export.WEIGHTS_FILE
    assert weights.read_bytes() == Path(trained.weights).read_bytes()
    needed = (folder / "requirements.txt").read_text().splitlines()
    assert f"numpy=={installed('numpy')}" in needed
    assert [line.partition("==")[0] for line in needed] == ["mlflow", "torch", "numpy"]


def test_a_classifier_gives_the_same_probabilities_without_evergreen(
    classifier: tuple[Path, DatasetVersion, torch.nn.Module], tmp_path: Path
) -> None:
    folder, version, module = classifier
    inputs = values(20, seed=3)
    inputs[0] = np.nan
    wanted = predictor(module)(inputs)
    np.testing.assert_allclose(wanted.sum(axis=1), 1, atol=1e-6)
    for found in predicted_without_evergreen(folder, inputs, tmp_path):
        np.testing.assert_allclose(found, wanted[: len(found)], atol=1e-6)
    said = yaml.safe_load((folder / "MLmodel").read_text())
    assert said["metadata"] == metadata_of(version)
    assert [column["name"] for column in json.loads(said["signature"]["inputs"])] == ["size", "colour", "day"]
    assert found_foreign(folder) is None


def code_path(folder: Path) -> None:
    edit(folder, lambda flavors: flavors["pytorch"].update(code="code"))


def other_loader(folder: Path) -> None:
    edit(folder, lambda flavors: flavors["python_function"].update(loader_module="own"))


def another_flavor(folder: Path) -> None:
    edit(folder, lambda flavors: flavors.update(sklearn={}))


def file_beside(folder: Path) -> None:
    (folder / "data" / "more.pkl").write_bytes(b"")


def cut_short(folder: Path) -> None:
    program = folder / torch_export.MODEL_FILE
    program.write_bytes(program.read_bytes()[:-100])


def edit(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    said = yaml.safe_load((folder / "MLmodel").read_text())
    change(said["flavors"])
    (folder / "MLmodel").write_text(yaml.safe_dump(said))


def test_what_evergreen_would_not_have_written_is_found(
    classifier: tuple[Path, DatasetVersion, torch.nn.Module], tmp_path: Path
) -> None:
    for number, (change, said) in enumerate(
        [
            (code_path, "it brings code"),
            (other_loader, "it is loaded by own"),
            (another_flavor, "its flavors are"),
            (file_beside, "data holds model.pt2, more.pkl"),
            (cut_short, "data/model.pt2: "),
        ]
    ):
        folder = tmp_path / str(number)
        shutil.copytree(classifier[0], folder)
        change(folder)
        assert (found_foreign(folder) or "").startswith(said)


def test_weights_that_training_did_not_write_are_refused(home: Home) -> None:
    version = prepared(home, BundledTable("diabetes"), "diabetes", problem="regression")
    recipe, _ = load("diabetes")
    here = {"scaling": {"num_workers": 0, "use_gpu": "no"}, "training": {"max_steps": 1}}
    trained = launch(job_for(home, version, resolve(recipe.settings, here), "diabetes"))
    with pytest.raises(DataError, match="not the weights that training wrote"):
        torch_export.predictor(recipe, version, trained.model_copy(update={"weights_digest": "0" * 64}))
