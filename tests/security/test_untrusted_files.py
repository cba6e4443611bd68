"""Weights, unpacked columns and Parquet files crafted to run code are refused, and their content is never executed.

Checkpoints: tests/training/checkpoints/test_checkpoint_damage.py.
Archives, downloads and CIFAR's pickles: tests/training/data/sources.
"""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import small_runs
import torch
from bombs import Bomb, armed, goes_off

from tasks.inference.unlabelled_images import find_chunks, read_chunk
from training.checkpoints.weights import load_weights
from training.data.dataset import open_columns
from training.data.sources.locate import open_path
from training.data.tables.reading import blocks, column_types
from training.errors import DataError
from training.records import DatasetVersion
from training.storage.paths import Home
from training.supervision.launch import finished, launch
from training.trainers.network.serving import load_weights_of


@pytest.mark.extended
@pytest.mark.parametrize("how", ["pickle", "torch"])
def test_weights_that_are_a_pickle(tmp_path: Path, how: str) -> None:
    mark, file = tmp_path / "executed", tmp_path / "weights.safetensors"
    if how == "torch":
        torch.save({"weight": Bomb(mark)}, file)
    else:
        file.write_bytes(armed(mark))
    with pytest.raises(DataError, match=r"weights\.safetensors"):
        load_weights(file)
    assert not mark.exists()
    program = "import sys, torch; torch.load(open(sys.argv[1], 'rb'), weights_only=False)"
    assert goes_off(mark, program, str(file)), "a dud"


def test_weights_of_a_finished_training_are_held_against_their_digest(
    tmp_path: Path, small_version: DatasetVersion
) -> None:
    home = Home(tmp_path)
    settings = small_runs.tiny_settings(training={"epochs": 1})
    trained = launch(small_runs.job_for(home, small_version, settings))
    weights = load_weights(Path(trained.weights))
    from safetensors.torch import save_file

    save_file({name: tensor + 1e-6 for name, tensor in weights.items()}, trained.weights)
    with pytest.raises(DataError, match="digest differs"):
        load_weights_of(trained)
    assert finished(home.run("digits", trained.run_key), trained.run_key) is not None


def test_unpacked_columns_that_are_a_pickle(tmp_path: Path) -> None:
    version = small_runs.prepared(Home(tmp_path / "home"), data={"max_train_rows": 300, "max_test_rows": 100})
    expected = np.array(open_columns(version, "train").targets)
    mark, file = tmp_path / "executed", Path(version.path) / ".columns-train" / "targets.npy"
    assert file.is_file()
    np.save(file, np.array([Bomb(mark)], dtype=object), allow_pickle=True)
    assert (open_columns(version, "train").targets == expected).all()  # unpacked again from verified Parquet
    assert not mark.exists()
    np.save(tmp_path / "bomb.npy", np.array([Bomb(mark)], dtype=object), allow_pickle=True)
    program = "import sys, numpy; numpy.load(sys.argv[1], allow_pickle=True)"
    assert goes_off(mark, program, str(tmp_path / "bomb.npy")), "a dud"


def parquet_with(folder: Path, extension: str, metadata: bytes) -> Path:
    """Images and labels whose image column claims to be of an Arrow extension type with this metadata."""
    folder.mkdir()
    marks = {"ARROW:extension:name": extension, "ARROW:extension:metadata": metadata}
    storage = pa.array([[0] * 4] * 8, pa.list_(pa.uint8()))
    schema = pa.schema([pa.field("image", storage.type, metadata=marks), pa.field("label", pa.string())])
    table = pa.Table.from_arrays([storage, pa.array(list("abababab"))], schema=schema)
    pq.write_table(table, folder / "train.parquet")
    pq.write_table(table, folder / "test.parquet")
    return folder


def read_as_a_source(folder: Path) -> None:
    source = open_path(folder, folder / "unpacked", ())
    files = source.fetch(folder / "fetched")
    for split in source.splits(files):
        list(source.read(files, split, range(source.count(files, split))))


def read_to_predict(folder: Path) -> None:
    for chunk in find_chunks(folder):
        list(read_chunk(chunk, (1, 2, 2)))


@pytest.mark.extended
@pytest.mark.parametrize("read", [read_as_a_source, read_to_predict])
@pytest.mark.parametrize(
    "extension",
    ["ray.data.arrow_tensor", "ray.data.arrow_tensor_v2"],
)
def test_parquet_whose_metadata_is_a_pickle(
    tmp_path: Path, extension: str, read: Callable[[Path], None]
) -> None:
    import ray.data  # noqa: F401 - it registers the extension types

    mark = tmp_path / "executed"
    folder = parquet_with(tmp_path / "data", extension, armed(mark))
    with pytest.raises(DataError) as refused:
        read(folder)
    assert any(str(folder / name) in str(refused.value) for name in ("train.parquet", "test.parquet"))
    assert not mark.exists()
    program = "import sys, ray.data, pyarrow.parquet; pyarrow.parquet.read_table(sys.argv[1])"
    file = str(folder / "train.parquet")
    assert goes_off(mark, program, file, RAY_DATA_AUTOLOAD_CLOUDPICKLE_TENSOR_METADATA="1"), "a dud"
    assert not goes_off(mark, program, file)


PICKLED = ("label", "split", "path")  # `path` is a field of the struct with an image's bytes


def pickled_objects(folder: Path, name: str, mark: Path) -> Path:
    """Images and labels, with a column or a struct's field of the type whose values `ray.data` unpickles."""
    from ray.data._internal.object_extensions.arrow import ArrowPythonObjectType

    folder.mkdir()
    objects = ArrowPythonObjectType().wrap_array(pa.array([pickle.dumps(Bomb(mark))] * 8, pa.large_binary()))
    image = pa.array([[0] * 4] * 8) if name != "path" else pa.array([b"x"] * 8)
    columns = {"image": image, "label": pa.array(list("abababab")), name: objects}
    if name == "path":
        columns["image"] = pa.StructArray.from_arrays([image, objects], names=["bytes", "path"])
        del columns["path"]
    for split in ("train", "test"):
        pq.write_table(pa.table(columns), folder / f"{split}.parquet")
    return folder


@pytest.mark.extended
@pytest.mark.parametrize("read", [read_as_a_source, read_to_predict])
@pytest.mark.parametrize("name", PICKLED)
def test_parquet_with_pickled_values(tmp_path: Path, name: str, read: Callable[[Path], None]) -> None:
    mark = tmp_path / "executed"
    folder = pickled_objects(tmp_path / "data", name, mark)
    with pytest.raises(DataError, match=r"t\w+\.parquet: column .* may run code"):
        read(folder)
    assert not mark.exists()
    program = "import sys, ray.data, pyarrow.parquet; pyarrow.parquet.read_table(sys.argv[1]).to_pylist()"
    assert goes_off(mark, program, str(folder / "train.parquet")), "a dud"


@pytest.mark.parametrize("column", ["target", "split", "x"])
def test_a_table_with_pickled_values(tmp_path: Path, column: str) -> None:
    from ray.data._internal.object_extensions.arrow import ArrowPythonObjectType

    mark, file = tmp_path / "executed", tmp_path / "rows.parquet"
    objects = ArrowPythonObjectType().wrap_array(pa.array([pickle.dumps(Bomb(mark))] * 8, pa.large_binary()))
    columns = {
        "x": pa.array(range(8)),
        "split": pa.array(["train", "test"] * 4),
        "target": pa.array(range(8)),
    }
    pq.write_table(pa.table(columns | {column: objects}), file)
    with pytest.raises(DataError, match=rf"rows\.parquet: column '{column}' .* may run code"):
        list(blocks(file, [column]))
    with pytest.raises(DataError, match="may run code"):
        column_types(file)
    assert not mark.exists()


def test_rays_loaders_stay_off_in_a_cluster_of_a_run(ray_session: None) -> None:
    import ray

    def variables() -> dict[str, Any]:
        return {name: value for name, value in os.environ.items() if "AUTOLOAD" in name}

    assert variables() == {}
    assert ray.get(ray.remote(num_cpus=0)(variables).remote()) == {}
