"""Models of LightGBM in MLflow: the contract of a format, and what is checked before LightGBM loads a text."""

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import lightgbm
import numpy as np
import pytest
from boosted_tables import boosted_job, mixed_table
from format_contract import FormatContract, Stored
from hypothesis import given
from hypothesis import strategies as st
from raw_predictions import every_kind

from tasks.model_formats.base import format_named, metadata_of
from tasks.model_formats.lightgbm_trees import check_text
from training.errors import DataError
from training.recipe import load
from training.records import DatasetVersion, TrainedModel
from training.storage.paths import Home
from training.supervision.launch import launch
from training.trainers.lightgbm.text import model_of, text_of


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model of a table with numbers, missing values and a category: 3 rounds of 3 classes."""
    home = Home(tmp_path_factory.mktemp("text"))
    small = {"rounds": 3, "select": "last", "num_leaves": 6, "max_depth": -1}
    version = mixed_table(home, home.root / "files", 600)
    return Path(launch(boosted_job(home, version, trainer="LightGBM", training=small)).weights).read_text()


class TestLightGBMKeepsTheContract(FormatContract):
    """The promises of a format, kept by trees in LightGBM's text."""

    name = "lightgbm_text"
    trainer = "lightgbm"

    def train(self, home: Home) -> tuple[str, DatasetVersion, TrainedModel]:
        version = every_kind(home, "regression")
        job = boosted_job(home, version, trainer="LightGBM", training={"rounds": 8})
        return job.recipe.path, version, launch(job)

    def log_before(self, run_id: str, stored: Stored) -> str:
        """No release before had this format."""
        said = metadata_of(stored.version, self.name)
        recipe = load(stored.recipe)[0]
        return format_named(self.name).log_model(
            run_id, recipe, stored.version, stored.trained, stored.inputs[:4], said
        )

    def check_ties(self, stored: Stored) -> None:
        """Trees share no weights: a file of a network's weights is no model of this format."""
        from safetensors.numpy import save

        file = Path(stored.trained.weights).with_name("tied.safetensors")
        file.write_bytes(save({"one": np.ones(3), "same": np.ones(3)}))
        with pytest.raises(DataError):
            check_text(file)


def test_a_text_of_the_training_passes(text: str, tmp_path: Path) -> None:
    (tmp_path / "model.lgb").write_text(text)
    check_text(tmp_path / "model.lgb")
    assert "parameters" not in text
    assert "127.0.0.1" not in text
    assert text.count("Tree=") == 9
    assert "cat_boundaries" in text


def test_a_split_of_missing_values_from_all_others_passes(tmp_path: Path) -> None:
    """LightGBM writes the threshold of such a split as inf."""
    random = np.random.default_rng(0)
    values = random.normal(size=2000)
    values[:1000] = np.nan
    targets = np.isnan(values) * 1.0
    data = lightgbm.Dataset(values[:, None], targets, params={"verbosity": -1})
    model = lightgbm.train({"objective": "regression", "num_leaves": 2, "verbosity": -1}, data, 2)
    (tmp_path / "model.lgb").write_bytes(text_of(model))
    assert "threshold=inf" in (tmp_path / "model.lgb").read_text()
    check_text(tmp_path / "model.lgb")
    assert np.array_equal(model_of(text_of(model)).predict(values[:, None]), model.predict(values[:, None]))


def first(pattern: str, new: str | Callable[[re.Match[str]], str]) -> Callable[[str], str]:
    """Replace the first match in a text by a text of the same length, so that tree_sizes stay right."""

    def changed(text: str) -> str:
        match = re.search(pattern, text, re.MULTILINE)
        assert match is not None, pattern
        replacement = new(match) if callable(new) else new
        assert len(replacement) == len(match.group()), (replacement, match.group())
        return text[: match.start()] + replacement + text[match.end() :]

    return changed


HOSTILE = {
    "size beyond the text": (
        lambda text: re.sub(r"tree_sizes=\d+", "tree_sizes=99999999", text),
        "sizes of trees",
    ),
    "size inside a tree": (
        lambda text: re.sub(r"tree_sizes=(\d+)", lambda m: f"tree_sizes={int(m[1]) - 1}", text),
        "not where tree_sizes says",
    ),
    "child outside": (first(r"^left_child=\d", "left_child=9"), "outside of the tree"),
    "child above": (first(r"^left_child=\d", "left_child=0"), "outside of the tree, or above"),
    "leaf twice": (
        first(r"^right_child=.*", lambda m: re.sub(r"-\d", "-1", m.group())),
        "is no tree",
    ),
    "feature outside": (first(r"^split_feature=\d", "split_feature=7"), "outside of the 4 features"),
    "unknown decision": (first(r"^decision_type=\d\b", "decision_type=7"), "set of categories|decision"),
    "bounds of categories": (first(r"^cat_boundaries=0 1", "cat_boundaries=0 9"), "outside of its words"),
    "infinite leaf": (
        first(r"^leaf_value=\S+", lambda m: "leaf_value=" + "inf".ljust(len(m.group()) - 11, "0")),
        "finite",
    ),
    "linear tree": (first(r"^is_linear=0", "is_linear=1"), "leaves"),
    "further line": (
        lambda text: text.replace("label_index=0", "label_index=0\naverage_output"),
        "other lines",
    ),
    "other objective": (
        lambda text: text.replace("objective=multiclass", "objective=lambdarank"),
        "objective",
    ),
    "data frame": (lambda text: text.replace("categorical:null", 'categorical:[["a"]]'), "it ends otherwise"),
    "parameters": (
        lambda text: text.replace(
            "\npandas", "\nparameters:\n[machines: 1.2.3.4:5]\nend of parameters\n\npandas"
        ),
        "importances|ends otherwise",
    ),
    "value of the first line": (lambda text: text.replace("tree\n", "tree=\rversion=v4\n", 1), "no text"),
    "two numbers of leaves": (
        lambda text: re.sub(r"tree_sizes=(\d+)", lambda m: f"tree_sizes={int(m[1]) + 2}", text).replace(
            "num_leaves=6", "num_leaves=6 6", 1
        ),
        "in place of one",
    ),
    "several outputs of a regression": (
        lambda text: re.sub(r"objective=multiclass \S+", "objective=regression", text),
        "objective",
    ),
    "other version": (lambda text: text.replace("version=v4", "version=v9"), "version"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_text_that_leads_lightgbm_astray_is_refused(text: str, tmp_path: Path, name: str) -> None:
    change, message = HOSTILE[name]
    file = tmp_path / "model.lgb"
    file.write_text(change(text))
    assert file.read_text() != text
    with pytest.raises(DataError, match=message):
        check_text(file)


@given(st.data())
def test_damage_raises_no_other_error(
    text: str, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """A changed digit of a leaf passes, as no check could find it; the digest of the file does."""
    damaged = bytearray(text.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(damaged[: data.draw(st.integers(0, len(damaged)) | st.just(len(damaged)))])
    file = tmp_path_factory.getbasetemp() / "damaged.lgb"
    file.write_bytes(cut)
    with suppress(DataError):
        check_text(file)
