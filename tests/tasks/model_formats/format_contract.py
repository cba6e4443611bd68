"""What callers rely on of every model format. A test class inherits :class:`FormatContract` and gives a training."""

import json
import shutil
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import yaml
from bombs import armed
from raw_predictions import predicted_elsewhere, raw_rows

from tasks.model_formats.base import check_same, format_named, metadata_of
from tasks.model_formats.table_models import CODE_FOLDER, COLUMNS_FILE
from tasks.registry.aliases import load_version
from tasks.registry.safe_loading import FILE_TAG, check_files, digest_of_logged
from tasks.trackers.mlflow_run import connect
from training.data.dataset import open_columns
from training.errors import DataError
from training.recipe import load
from training.records import DatasetVersion, TrainedModel
from training.settings.schema import TrainerName
from training.storage.paths import Home
from training.trainers.base import inspection_of

MODEL = "every"
# argv: recipe, version and training as JSON, a file for the predictions.
_AGAIN = """
import sys
import numpy as np
from training.data.dataset import open_columns
from training.recipe import load
from training.records import DatasetVersion, TrainedModel
from training.trainers.base import inspection_of
trainer, recipe, version, trained, file = sys.argv[1:]
version = DatasetVersion.model_validate_json(version)
predict = inspection_of(trainer).predictor(load(recipe)[0], version, TrainedModel.model_validate_json(trained))
np.save(file, predict(np.array(open_columns(version, "test").inputs)))
"""


class Stored(NamedTuple):
    """A training, and its model as version 1 of the registered model :data:`MODEL`, in the folder `files`."""

    home: Home
    recipe: str
    version: DatasetVersion
    trained: TrainedModel
    files: Path

    @property
    def inputs(self) -> Any:
        return np.array(open_columns(self.version, "test").inputs)


def described(folder: Path) -> dict[str, Any]:
    return dict(yaml.safe_load((folder / "MLmodel").read_text()))


def edit(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the flavors in the model's `MLmodel`."""
    said = described(folder)
    change(said["flavors"])
    (folder / "MLmodel").write_text(yaml.safe_dump(said, allow_unicode=True))


class FormatContract(ABC):
    """Tests of a format of a trainer's models, by a model on a table with columns of all kinds.

    `name` is the format's name in :data:`training.seams.FORMATS`.
    """

    name: str
    trainer: TrainerName

    @abstractmethod
    def train(self, home: Home) -> tuple[str, DatasetVersion, TrainedModel]:
        """A recipe file, a table of `every_kind`, and a training; a network has tied weights."""

    @abstractmethod
    def log_before(self, run_id: str, stored: Stored) -> str:
        """Log the model as the release before logged it; returns its URI."""

    @abstractmethod
    def check_ties(self, stored: Stored) -> None:
        """Check that tied weights survive, or are refused."""

    @pytest.fixture(scope="class")
    def stored(self, tmp_path_factory: pytest.TempPathFactory) -> Stored:
        home = Home(tmp_path_factory.mktemp("home"))
        recipe, version, trained = self.train(home)
        model_format, client = format_named(self.name), connect(None, home)
        folder = home.mlflow_artifacts / MODEL
        run = client.create_run(
            client.create_experiment(MODEL, artifact_location=folder.as_uri())
        ).info.run_id
        example = np.array(open_columns(version, "test").inputs[:4])
        said = metadata_of(version, self.name)
        uri = model_format.log_model(run, load(recipe)[0], version, trained, example, said)
        logged = uri.removeprefix("models:/")
        client.create_registered_model(MODEL)
        tags = {FILE_TAG: digest_of_logged(client, logged, model_format.MODEL_FILE)}
        client.create_model_version(MODEL, uri, run, model_id=logged, tags=tags)
        (file,) = folder.rglob("MLmodel")
        return Stored(home, recipe, version, trained, file.parent)

    @pytest.fixture
    def changed(self, stored: Stored, tmp_path: Path) -> Iterator[Stored]:
        """The registered model, whose files a test may change; they are restored after the test."""
        connect(None, stored.home)
        shutil.copytree(stored.files, tmp_path / "kept")
        yield stored
        shutil.rmtree(stored.files)
        shutil.copytree(tmp_path / "kept", stored.files)

    def predict(self, stored: Stored) -> Any:
        """The predictor of the training."""
        recipe = load(stored.recipe)[0]
        return inspection_of(self.trainer).predictor(recipe, stored.version, stored.trained)

    def refused(self, stored: Stored, why: str) -> None:
        with pytest.raises(DataError, match=why):
            load_version(stored.home, MODEL, "1")

    def test_the_registered_model_has_the_bits_of_the_trained_one(self, stored: Stored) -> None:
        model_format, weights = format_named(self.name), Path(stored.trained.weights)
        kept = stored.files / (model_format.WEIGHTS_FILE or model_format.MODEL_FILE)
        assert kept.read_bytes() == weights.read_bytes()

    def test_another_process_finds_the_same_digest_and_predictions(
        self, stored: Stored, tmp_path: Path
    ) -> None:
        records = (stored.version.model_dump_json(), stored.trained.model_dump_json())
        file = tmp_path / "predictions.npy"
        command = [sys.executable, "-c", _AGAIN, self.trainer, stored.recipe, *records, str(file)]
        subprocess.run(command, check=True, timeout=300)
        assert np.array_equal(np.load(file), self.predict(stored)(stored.inputs))

    def test_one_changed_bit_of_the_training_is_refused(self, stored: Stored, tmp_path: Path) -> None:
        weights = Path(stored.trained.weights)
        content = bytearray(weights.read_bytes())
        content[-5] ^= 1
        (tmp_path / weights.name).write_bytes(content)
        with pytest.raises(DataError, match=weights.name):
            self.predict(
                stored._replace(
                    trained=stored.trained.model_copy(update={"weights": str(tmp_path / weights.name)})
                )
            )

    def test_one_changed_bit_of_the_registered_model_is_refused(self, changed: Stored) -> None:
        file = changed.files / format_named(self.name).MODEL_FILE
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
        self.refused(changed, "is not")

    @pytest.mark.parametrize("name", ["sitecustomize.py", "model.pkl", "code/more.py", "data/more.py"])
    def test_a_file_more_is_refused(self, changed: Stored, name: str) -> None:
        (changed.files / name).parent.mkdir(exist_ok=True)
        (changed.files / name).touch()
        self.refused(changed, "is not a model that Evergreen registered")

    @pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
    def test_a_truncated_model_is_refused(self, changed: Stored, share: float) -> None:
        file = changed.files / format_named(self.name).MODEL_FILE
        content = file.read_bytes()
        file.write_bytes(content[: int(share * len(content))])
        self.refused(changed, "is not a model that Evergreen registered")

    def test_a_planted_pickle_never_runs(
        self, changed: Stored, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        mark = tmp_path / "executed"
        monkeypatch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "true")
        (changed.files / format_named(self.name).MODEL_FILE).write_bytes(armed(mark))
        self.refused(changed, "is not a model that Evergreen registered")
        assert not mark.exists()

    @pytest.mark.parametrize("key", ["loader_module", "model_class", "predict_fn", "python_model"])
    def test_names_in_files_are_never_imported(self, changed: Stored, tmp_path: Path, key: str) -> None:
        mark = tmp_path / "executed"
        (changed.files / "code" / "innocent.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
        edit(changed.files, lambda flavors: [flavor.update({key: "innocent"}) for flavor in flavors.values()])
        self.refused(changed, "is not a model that Evergreen registered")
        assert not mark.exists()

    def test_code_in_a_sound_model_is_not_imported(self, stored: Stored) -> None:
        connect(None, stored.home)
        paths = list(sys.path)
        check_same(self.predict(stored), load_version(stored.home, MODEL, "1").predict, stored.inputs)
        assert sys.path == paths
        assert not [name for name in sys.modules if name.startswith("evergreen_table_")]

    def test_a_version_of_the_release_before_loads(self, stored: Stored) -> None:
        client = connect(None, stored.home)
        experiment = client.get_experiment_by_name(MODEL)
        run = client.create_run(experiment.experiment_id).info.run_id
        uri = self.log_before(run, stored)
        made = client.create_model_version(MODEL, uri, run, model_id=uri.removeprefix("models:/"))
        loaded = load_version(stored.home, MODEL, str(made.version))
        check_same(self.predict(stored), loaded.predict, stored.inputs)
        assert (loaded.table, loaded.problem) == (stored.version.table, stored.version.problem)

    def test_tied_weights_survive_or_are_refused(self, stored: Stored) -> None:
        self.check_ties(stored)

    def test_plain_mlflow_predicts_the_same_from_raw_columns(self, stored: Stored, tmp_path: Path) -> None:
        wanted = self.predict(stored)(stored.inputs)
        for predictions in predicted_elsewhere(stored.files, raw_rows(stored.version), tmp_path):
            assert (predictions.dtype, predictions.shape) == (
                np.float32,
                (len(predictions), *wanted.shape[1:]),
            )
            np.testing.assert_allclose(predictions, wanted[: len(predictions)], rtol=1e-5, atol=1e-6)
        # Python has stored no compiled code, which could run in place of the code when the model is loaded again.
        assert (stored.files / CODE_FOLDER / "__pycache__").is_file()
        check_files(stored.files, "model every version 1", {})

    def test_the_signature_and_the_example_have_the_raw_columns(self, stored: Stored) -> None:
        assert stored.version.table is not None
        names = [column.name for column in stored.version.table.columns]
        said = described(stored.files)
        assert [column["name"] for column in json.loads(said["signature"]["inputs"])] == names
        example = json.loads((stored.files / "input_example.json").read_text())
        assert example["columns"] == names
        for name, given in zip(names, example["data"][1], strict=True):
            value = raw_rows(stored.version)[name][1]
            assert given == (value.isoformat() if hasattr(value, "isoformat") else value)
        listed = json.loads((stored.files / COLUMNS_FILE).read_text())
        assert [column["kind"] for column in listed["columns"]] == [
            column.kind for column in stored.version.table.columns
        ]
        assert {column.kind for column in stored.version.table.columns} == {
            "number",
            "category",
            "boolean",
            "date",
        }

    def test_requirements_are_pinned(self, stored: Stored) -> None:
        lines = (stored.files / "requirements.txt").read_text().split()
        assert {"mlflow", "numpy", "pandas"} < {line.partition("==")[0] for line in lines}
        assert all(line.partition("==")[2] for line in lines)
