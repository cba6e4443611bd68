"""The inputs of a model, taken from a dataset's part files instead of its unpacked columns. Nothing is written."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from training.data.dataset import binary_to_numpy
from training.data.preprocessing.applying import model_inputs
from training.data.tables.values import FEATURE
from training.data.text.shards import TOKENS
from training.data.text.unpacking import token_ids
from training.records import DatasetVersion


def input_columns(version: DatasetVersion) -> list[str]:
    """Names of the columns of a part file that hold the inputs."""
    if version.table is None or version.has_images:
        return ["image"]
    if version.text is not None:
        return [TOKENS]
    return [f"{FEATURE}{column.name}" for column in version.table.raw.columns]


def inputs_of(part: pa.Table, version: DatasetVersion) -> npt.NDArray[Any]:
    """The inputs of a part file's rows, as in :class:`training.data.columns.Columns`."""
    if version.table is None or version.has_images:
        images: npt.NDArray[Any] = binary_to_numpy(part["image"], np.uint8).reshape(-1, *version.shape)
        return images
    if version.text is not None:
        return token_ids(part)
    return model_inputs(part, version.table, FEATURE)
