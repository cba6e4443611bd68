"""Checks a `.keras` file before Keras opens it: an archive of the model's configuration and its weights.

Keras builds the model from the configuration: it imports the classes that the configuration names, and a layer such as
`Lambda` holds code. So a configuration may name Keras' own classes alone, of the layers below, which compute with
tensors only. A weights file of HDF5 may contain links to other files, which are refused.
"""

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from training.errors import DataError

_FILES = {"config.json", "metadata.json", "model.weights.h5"}
_POOLS = {
    f"{kind}Pooling{n}D" for kind in ("Max", "Average", "GlobalMax", "GlobalAverage") for n in (1, 2, 3)
}
_CONVOLUTIONS = {f"Conv{n}D{kind}" for kind in ("", "Transpose") for n in (1, 2, 3)}
_LAYERS = frozenset(
    {
        *_POOLS, *_CONVOLUTIONS, "DepthwiseConv1D", "DepthwiseConv2D", "SeparableConv1D", "SeparableConv2D",
        "InputLayer", "Dense", "EinsumDense", "MultiHeadAttention", "Identity", "Activation", "ReLU", "LeakyReLU",
        "PReLU", "ELU", "Softmax", "BatchNormalization", "LayerNormalization", "GroupNormalization",
        "UnitNormalization",
        "RMSNormalization", "Dropout", "SpatialDropout1D", "SpatialDropout2D", "SpatialDropout3D", "GaussianNoise",
        "GaussianDropout", "Flatten", "Reshape", "Permute", "RepeatVector", "Cropping1D", "Cropping2D", "UpSampling1D",
        "UpSampling2D", "ZeroPadding1D", "ZeroPadding2D", "Add", "Average", "Concatenate", "Dot", "Maximum", "Minimum",
        "Multiply", "Subtract", "Rescaling", "Normalization",
    }
)  # fmt: skip
_INITIALIZERS = frozenset(
    {
        "Constant", "GlorotNormal", "GlorotUniform", "HeNormal", "HeUniform", "Identity", "LecunNormal", "LecunUniform",
        "Ones", "Orthogonal", "RandomNormal", "RandomUniform", "TruncatedNormal", "VarianceScaling", "Zeros",
    }
)  # fmt: skip
_CLASSES = frozenset(
    {
        "keras.Sequential",
        "keras.DTypePolicy",
        "keras.src.models.functional.Functional",
        *(f"keras.layers.{name}" for name in _LAYERS),
        *(f"keras.initializers.{name}" for name in _INITIALIZERS),
    }
)
_ACTIVATIONS = frozenset(
    {
        "celu", "elu", "exponential", "gelu", "hard_sigmoid", "hard_silu", "leaky_relu", "linear", "log_softmax",
        "mish", "relu", "relu6", "selu", "sigmoid", "silu", "softmax", "softplus", "softsign", "tanh",
    }
)  # fmt: skip
_TENSOR, _TENSOR_KEYS = "__keras_tensor__", {"shape", "dtype", "keras_history"}
_KEYS = {
    "module", "class_name", "config", "registered_name", "build_config", "compile_config", "name", "inbound_nodes",
    "shared_object_id",
}  # fmt: skip


def check_keras_file(file: Path) -> None:
    """Raise :class:`DataError` if a `.keras` file holds anything but Keras' own layers and their weights."""
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            if sorted(entry.filename for entry in entries) != sorted(_FILES):
                raise DataError(f"it holds {', '.join(entry.filename for entry in entries)}")
            if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
                raise DataError("its entries are compressed")
            config = json.loads(archive.read("config.json"))
            weights = archive.read("model.weights.h5")
    except (zipfile.BadZipFile, ValueError, OSError, RuntimeError) as error:
        raise DataError(f"it can't be read ({error})") from error
    if not (isinstance(config, dict) and config.get("class_name") == "Functional"):
        raise DataError("its configuration is not that of a functional model")
    _check_value(config, "")
    _check_weights(weights)


def _check_value(value: Any, key: str) -> None:
    """Check a part of a configuration; `key` is its name."""
    if isinstance(value, list):
        for part in value:
            if key == "layers" and not (isinstance(part, dict) and "class_name" in part):
                raise DataError("a layer of its configuration names no class")
            _check_value(part, "")
    elif isinstance(value, dict):
        if "class_name" in value:
            _check_object(value)
        for name, part in value.items():
            _check_field(name, part)
            _check_value(part, name)


def _check_field(name: str, value: Any) -> None:
    if name.endswith("activation") and value is not None and str(value) not in _ACTIVATIONS:
        raise DataError(f"its configuration has the {name} {value!r}")
    if name.endswith(("regularizer", "constraint", "compile_config")) and value not in (None, {}):
        raise DataError(f"its configuration has a {name}")


def _check_object(value: dict[str, Any]) -> None:
    """Check a part of a configuration from which Keras makes an object of a class."""
    module, name, config = value.get("module"), value["class_name"], value.get("config")
    if not isinstance(config, dict):
        raise DataError(f"its configuration has no settings of {name}")
    if name == _TENSOR and set(value) == {"class_name", "config"} and set(config) == _TENSOR_KEYS:
        return
    if not isinstance(module, str) or f"{module}.{name}" not in _CLASSES:
        raise DataError(
            f"its configuration names the class {module}.{name}, which is none that Evergreen knows"
        )
    if value.get("registered_name") not in (None, name):
        raise DataError(f"its configuration registers {name} as {value['registered_name']!r}")
    if odd := set(value) - _KEYS:
        raise DataError(f"its configuration has {sorted(odd)} in {name}")


def _check_weights(content: bytes) -> None:
    import h5py

    try:
        with h5py.File(io.BytesIO(content), "r") as file:
            for kind in _odd_parts(h5py, file):
                raise DataError(f"its weights have {kind}")
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise DataError(f"its weights can't be read ({error})") from error


def _odd_parts(h5py: Any, group: Any) -> Iterator[str]:
    """Describe what is no group and no array of numbers stored in the file."""
    for name in group:
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            yield f"a link at {name}"
            return
        part = group[name]
        if isinstance(part, h5py.Group):
            yield from _odd_parts(h5py, part)
        elif (
            not isinstance(part, h5py.Dataset)
            or part.external
            or part.is_virtual
            or part.dtype.kind not in "fiu"
        ):
            yield f"something other than numbers at {name}"
