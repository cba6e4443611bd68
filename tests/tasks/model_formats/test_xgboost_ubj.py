"""Models of XGBoost in MLflow: what is logged, what plain MLflow makes of it, and what is checked before loading."""

import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from boosted_tables import RegisteredTrees, boosted_job, bundled, mixed_table, registered_trees
from format_contract import FormatContract, Stored
from hypothesis import given
from hypothesis import strategies as st
from logged_before import log_trees, metadata_before
from raw_predictions import every_kind

from tasks.model_formats.base import check_same
from tasks.model_formats.ubj import read_ubj
from tasks.model_formats.xgboost_trees import check_trees
from tasks.registry.aliases import load_version
from tasks.registry.safe_loading import registered_inputs
from tasks.trackers.mlflow_run import connect
from training.data.dataset import open_columns
from training.errors import DataError
from training.recipe import load
from training.records import DatasetVersion, TrainedModel
from training.storage.paths import Home
from training.supervision.launch import launch
from training.trainers.xgboost import inspection


@pytest.fixture(scope="module", params=["mixed", "regression"])
def registered(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RegisteredTrees:
    home = Home(tmp_path_factory.mktemp(request.param))
    if request.param == "mixed":
        return registered_trees(home, mixed_table(home, home.root / "files", 600))
    return registered_trees(home, bundled(home, "regression"))


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A model of a table with numbers and a category: 3 rounds of 3 classes."""
    home = Home(tmp_path_factory.mktemp("content"))
    return Path(small_trees(home).trained.weights).read_bytes()


def small_trees(home: Home) -> RegisteredTrees:
    return registered_trees(home, mixed_table(home, home.root / "files", 600), rounds=3, select="last")


def inputs_of(registered: RegisteredTrees) -> Any:
    return np.array(open_columns(registered.version, "test").inputs)


@pytest.mark.extended
def test_the_registered_model_predicts_as_the_trained_one(registered: RegisteredTrees) -> None:
    connect(None, registered.home)
    inputs, version = inputs_of(registered), registered.version
    recipe = load(str(registered.home.root / "boosted.py"))[0]
    trained = inspection.predictor(recipe, version, registered.trained)
    loaded = load_version(registered.home, "boosted", "1")
    check_same(trained, loaded.predict, inputs)
    assert loaded.predict(inputs).dtype == np.float32
    shape = (len(inputs), len(version.classes)) if version.classes else (len(inputs),)
    assert loaded.predict(inputs).shape == trained(inputs).shape == shape
    assert (loaded.problem, loaded.classes) == (version.problem, version.classes)
    assert loaded.table == version.table
    assert loaded.shape == version.shape
    assert registered_inputs("boosted", "1") == (version.shape, version.problem, version.table)


def test_the_booster_is_reachable_by_mlflow_xgboost(registered: RegisteredTrees) -> None:
    import mlflow.xgboost

    inputs = inputs_of(registered)
    booster = mlflow.xgboost.load_model(str(registered.files))
    recipe = load(str(registered.home.root / "boosted.py"))[0]
    expected = inspection.predictor(recipe, registered.version, registered.trained)(inputs)
    assert np.array_equal(booster.inplace_predict(inputs), expected)


class TestTreesKeepTheContract(FormatContract):
    """The promises of a format, kept by boosted trees."""

    name = "xgboost_ubj"
    trainer = "xgboost"

    def train(self, home: Home) -> tuple[str, DatasetVersion, TrainedModel]:
        version = every_kind(home, "regression")
        job = boosted_job(home, version, training={"rounds": 8})
        return job.recipe.path, version, launch(job)

    def log_before(self, run_id: str, stored: Stored) -> str:
        metadata = metadata_before(stored.version)
        return log_trees(run_id, None, stored.version, stored.trained, stored.inputs[:4], metadata)

    def check_ties(self, stored: Stored) -> None:
        """Trees share no weights: a file of a network's weights is no model of this format."""
        from safetensors.numpy import save

        file = Path(stored.trained.weights).with_name("tied.safetensors")
        file.write_bytes(save({"one": np.ones(3), "same": np.ones(3)}))
        with pytest.raises(DataError, match="no UBJ of XGBoost"):
            check_trees(file)

    def test_requirements_name_the_installed_distribution(self, stored: Stored) -> None:
        lines = (stored.files / "requirements.txt").read_text().split()
        assert {line.partition("==")[0] for line in lines} == {"mlflow", "xgboost-cpu", "numpy", "pandas"}


def test_a_missing_file_of_the_training_is_refused(registered: RegisteredTrees, tmp_path: Path) -> None:
    recipe = load(str(registered.home.root / "boosted.py"))[0]
    trained = registered.trained.model_copy(update={"weights": str(tmp_path / "missing.ubj")})
    with pytest.raises(DataError, match=r"missing\.ubj"):
        inspection.predictor(recipe, registered.version, trained)


@pytest.mark.extended
@pytest.mark.parametrize(
    "training",
    [
        {"gamma": 5.0, "max_depth": 8},
        {"rounds": 1},
        {"max_depth": 1, "min_child_weight": 1e6},
        {"max_bin": 2},
    ],
)
def test_what_xgboost_writes_passes_the_check(home: Home, tmp_path: Path, training: dict[str, Any]) -> None:
    """With pruned trees, a single round, trees of one leaf, and the fewest bins."""
    for version in (mixed_table(home, tmp_path, 300), bundled(home, "regression")):
        trained = registered_trees(Home(home.root / version.name), version, **training).trained
        check_trees(Path(trained.weights))


def place_of(content: bytes, field: str) -> tuple[int, str, int]:
    """Position of the first element of the first non-empty array `field`, its format and its length."""
    key = b"L" + struct.pack(">q", len(field)) + field.encode() + b"[$"
    at = content.index(key) + len(key)
    while True:
        form = {b"l": ">i", b"U": ">B", b"L": ">q", b"d": ">f"}[content[at : at + 1]]
        (length,) = struct.unpack(">q", content[at + 3 : at + 11])
        if length:
            return at + 11, form, length
        at = content.index(key, at) + len(key)


def changed(field: str, index: int, value: int) -> Callable[[bytes], bytes]:
    """Set an element of the first array `field`."""

    def change(content: bytes) -> bytes:
        at, form, _ = place_of(content, field)
        at += index * struct.calcsize(form)
        return content[:at] + struct.pack(form, value) + content[at + struct.calcsize(form) :]

    return change


def replaced(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    assert len(old) == len(new)

    def change(content: bytes) -> bytes:
        assert old in content
        return content.replace(old, new, 1)

    return change


HOSTILE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "a child outside of the tree": (changed("left_children", 0, 1 << 20), "outside of the tree"),
    "a negative child": (changed("right_children", 0, -7), "outside of the tree"),
    "a circle": (changed("left_children", 1, 0), "outside of the tree|no tree"),
    "two parents": (changed("left_children", 0, 2), "no tree"),
    "another parent": (changed("parents", 2, 1), "another parent"),
    "a feature that is not there": (changed("split_indices", 0, 1 << 20), "feature outside"),
    "a negative feature": (changed("split_indices", 0, -1), "feature outside"),
    "a huge category": (changed("categories", 0, (1 << 31) - 1), "impossible numbers"),
    "a negative category": (changed("categories", 0, -5), "negative category"),
    "categories of another split": (changed("categories_segments", 0, 1 << 40), "outside of its splits"),
    "more categories than there are": (changed("categories_sizes", 0, 1 << 40), "categories of each split"),
    "a split of no kind": (changed("split_type", 0, 9), "split_type|splits by categories"),
    "another booster": (replaced(b"gbtree}", b"dart__}"), "dart__"),
    "another objective": (replaced(b"multi:softprob", b"multi:softmaxx"), "objective is"),
    "a field more": (replaced(b"base_score", b"best_score"), "other fields"),
    "more classes": (
        replaced(b"num_classSL" + b"\0" * 7 + b"\x013", b"num_classSL" + b"\0" * 7 + b"\x011"),
        "class",
    ),
    "the rest is missing": (lambda content: content[: len(content) // 2], "ends within"),
    "more at its end": (lambda content: content + b"\0", "bytes follow"),
    "nothing": (lambda _: b"", "ends within"),
    "a pickle": (lambda _: b"\x80\x04\x8c\x05posix\x94\x8c\x06system\x94\x93\x94.", "no UBJ"),
    "JSON": (lambda _: b'{"learner": {}}', "no UBJ|no length"),
    "deeply nested": (lambda _: b"[#i\x01" * 100_000, "nested deeper"),
    "an array without end": (lambda _: b"[#L" + struct.pack(">q", 1 << 60), "outside of the file"),
    "a typed array without end": (lambda _: b"[$L#L" + struct.pack(">q", 1 << 60), "ends within"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_model_that_would_mislead_xgboost_is_refused(content: bytes, tmp_path: Path, name: str) -> None:
    change, message = HOSTILE[name]
    file = tmp_path / "model.ubj"
    file.write_bytes(content)
    check_trees(file)
    file.write_bytes(change(content))
    with pytest.raises(DataError, match=message):
        check_trees(file)


@given(st.data())
def test_damage_raises_no_other_error(
    content: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """A flipped value of a leaf passes, as no check could find it; the digest of the file does."""
    damaged = bytearray(content)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(damaged[: data.draw(st.integers(0, len(content)) | st.just(len(content)))])
    file = tmp_path_factory.getbasetemp() / "damaged.ubj"
    file.write_bytes(cut)
    with suppress(DataError):
        check_trees(file)


def test_all_kinds_of_values_are_read() -> None:
    big = struct.pack(">q", 5)
    text = (
        b"{i\x01aSi\x02hiU\x01bU\xffi\x01cI\xff\xfel\0\0\0\x01dL"
        + big
        + b"i\x01e[$d#i\x02?\x80\0\0@\0\0\0i\x01f[#i\x02i\x03[#i\0}"
    )
    values = read_ubj(text)
    assert values.pop("e").tolist() == [1.0, 2.0]
    assert values == {"a": "hi", "b": 255, "c": -2, "d": 5, "f": [3, []]}
