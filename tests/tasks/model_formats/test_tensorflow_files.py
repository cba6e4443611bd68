"""Files of models of TensorFlow: what Keras would run, or believe, is refused before Keras opens the file."""

import io
import json
import shutil
import zipfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tasks.model_formats.keras_config import check_keras_file
from training.errors import DataError

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(find_spec("tensorflow") is None, reason="run by: make test-tensorflow"),
]
Change = Callable[[dict[str, bytes]], None]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a small model."""
    from training.trainers.tensorflow.library import tensorflow_keras

    keras = tensorflow_keras()
    inputs = keras.Input((4,))
    file = tmp_path_factory.mktemp("sound") / "model.keras"
    keras.Model(inputs, keras.layers.Dense(2, activation="relu")(inputs)).save(file)
    return file


def changed_layer(**changes: Any) -> Change:
    """Change the last layer of the configuration; keys of the layer's own settings begin with `config_`."""

    def change(files: dict[str, bytes]) -> None:
        config = json.loads(files["config.json"])
        layer = config["config"]["layers"][-1]
        for name, value in changes.items():
            own = name.removeprefix("config_")
            (layer["config"] if own != name else layer)[own] = value
        files["config.json"] = json.dumps(config).encode()

    return change


def external_link(files: dict[str, bytes]) -> None:
    import h5py

    content = io.BytesIO(files["model.weights.h5"])
    with h5py.File(content, "r+") as weights:
        weights["other"] = h5py.ExternalLink("/etc/passwd", "/")
    files["model.weights.h5"] = content.getvalue()


HOSTILE: dict[str, Change] = {
    "lambda": changed_layer(class_name="Lambda"),
    "a class of Python": changed_layer(module="subprocess", class_name="Popen"),
    "a layer that loads a file": changed_layer(class_name="TFSMLayer"),
    "a registered class": changed_layer(registered_name="package>Layer"),
    "no module": changed_layer(module=None),
    "an activation that is a function": changed_layer(
        config_activation={
            "class_name": "function",
            "config": "system",
            "module": "os",
            "registered_name": "system",
        }
    ),
    "an activation by name": changed_layer(config_activation="get_file"),
    "a nested lambda": changed_layer(
        config_kernel_initializer={"class_name": "__lambda__", "config": {"value": "x"}}
    ),
    "a loss to compile": changed_layer(compile_config={"loss": "mse"}),
    "a further file": lambda files: files.update({"assets/x": b""}),
    "a link to another file": external_link,
    "damaged weights": lambda files: files.update({"model.weights.h5": b"no"}),
}


def written(files: dict[str, bytes], file: Path) -> Path:
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return file


@pytest.mark.parametrize("attack", HOSTILE)
def test_a_hostile_file_is_refused(attack: str, sound: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(sound) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    check_keras_file(written(files, tmp_path / "sound.keras"))
    HOSTILE[attack](files)
    with pytest.raises(DataError):
        check_keras_file(written(files, tmp_path / "model.keras"))


def test_a_compressed_file_is_refused(sound: Path, tmp_path: Path) -> None:
    shutil.copyfile(sound, tmp_path / "model.keras")
    check_keras_file(tmp_path / "model.keras")
    with zipfile.ZipFile(sound) as archive, zipfile.ZipFile(tmp_path / "model.keras", "w") as other:
        for name in archive.namelist():
            other.writestr(name, archive.read(name), zipfile.ZIP_DEFLATED)
    with pytest.raises(DataError, match="compressed"):
        check_keras_file(tmp_path / "model.keras")
