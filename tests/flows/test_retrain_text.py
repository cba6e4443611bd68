"""A classifier of texts, from files to a rollback; the second model has another tokenizer than the first."""

import re
import shutil
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from registered import rows_of
from small_texts import MODEL, sentences

from evergreen import plan
from flows.retrain import retrain
from tasks import predict as predict_step
from tasks import rollback as rollback_step
from tasks.registry.aliases import load_version
from tasks.verify import verify
from training.data.columns import open_columns
from training.data.manifest import read_manifest
from training.data.text.unpacking import text_ids
from training.errors import DataError, SettingError
from training.records import DatasetVersion, Release
from training.storage.paths import HOME_VARIABLE, Home

pytest.importorskip("tokenizers", reason="install the extras by: make setup EXTRAS=all")
pytestmark = pytest.mark.frameworks
RECIPE = """
from evergreen import Recipe, Text

{model}

recipe = Recipe(name="films", source=Text("films.tsv"), build_model=build_model)
"""
SETTINGS: dict[str, Any] = {
    "data": {"max_tokens": 16, "vocabulary": 400},
    "scaling": {"num_workers": 0, "use_gpu": "no"},
    "training": {"global_batch_size": 40, "learning_rate": 0.001, "epochs": 1},
    "tracking": {"system_metrics": False},
    "gate": {"floor": 0.0},
}
LONGER = {**SETTINGS, "training": {"global_batch_size": 40, "learning_rate": 0.02, "epochs": 5}}
MARK = "<i>film</i>"


def write_rows(project_folder: Path, rows: int) -> None:
    lines = [f"{label}\t{MARK} {text}" for text, label in sentences(rows)]
    (project_folder / "films.tsv").write_text("\n".join(["label\ttext", *lines]) + "\n")


@pytest.fixture(scope="module")
def project_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the recipe, its texts, and the home."""
    folder = tmp_path_factory.mktemp("films")
    (folder / "films.py").write_text(RECIPE.format(model=MODEL))
    return folder


@pytest.fixture(scope="module")
def releases(project_folder: Path, prefect_harness: None) -> Iterator[tuple[Release, Release]]:
    """A poor model, and then a better one on more texts, which replaces the first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(HOME_VARIABLE, str(project_folder / "home"))
        write_rows(project_folder, 400)
        first = retrain(str(project_folder / "films.py"), SETTINGS)
        write_rows(project_folder, 800)
        yield first, retrain(str(project_folder / "films.py"), LONGER)


def home_of(project_folder: Path) -> Home:
    return Home(project_folder / "home")


def dataset_of(project_folder: Path, release: Release) -> DatasetVersion:
    folder = home_of(project_folder).dataset("films", release.dataset_fingerprint)
    return read_manifest(folder, release.dataset_fingerprint)


def test_the_better_model_replaces_one_with_another_tokenizer(
    releases: tuple[Release, Release], project_folder: Path
) -> None:
    first, second = (dataset_of(project_folder, release) for release in releases)
    assert first.text is not None
    assert second.text is not None
    assert first.text.tokenizer != second.text.tokenizer
    assert (releases[1].alias, releases[1].version) == ("champion", "2")
    assert releases[1].metrics["accuracy"] > 0.9 > releases[1].metrics["champion_accuracy"]


def test_the_report_has_the_texts_that_the_model_got_wrong(
    releases: tuple[Release, Release], project_folder: Path
) -> None:
    page = home_of(project_folder).run("films", releases[0].run_key).report.read_text()
    assert page.count(f'<td class="text">{escape(MARK)} ') > 5


def test_the_champion_is_judged_by_its_own_tokenizer(
    releases: tuple[Release, Release], project_folder: Path
) -> None:
    """The champion's recorded accuracy is the one of its own program on ids of its own tokenizer."""
    champion, version = (
        load_version(home_of(project_folder), "films", "1"),
        dataset_of(project_folder, releases[1]),
    )
    predicted = champion.predict(text_ids(version, "test", champion.tokenizer)).argmax(1)
    right = predicted == open_columns(version, "test").targets
    assert right.mean() == pytest.approx(releases[1].metrics["champion_accuracy"])


def test_raw_texts_are_predicted_as_mlflow_and_tokenizers_alone_do(
    releases: tuple[Release, Release], project_folder: Path, tmp_path: Path
) -> None:
    import mlflow
    from tokenizers import Tokenizer

    texts = [text for text, _ in sentences(20, seed=1)]
    (tmp_path / "new.txt").write_text("\n".join(texts) + "\n")
    (tmp_path / "new.csv").write_text(
        "\n".join(["id,text", *(f"{i},{t}" for i, t in enumerate(texts))]) + "\n"
    )
    root, probabilities = str(home_of(project_folder).root), []
    for name in ("new.txt", "new.csv"):
        output = tmp_path / f"{name}.parquet"
        summary = predict_step.predict.fn(root, "films", str(tmp_path / name), str(output))
        assert (summary.rows, summary.unit, summary.version) == (20, "rows", "2")
        probabilities.append([row["probabilities"] for row in rows_of(output)])
    folder = Path(mlflow.artifacts.download_artifacts("models:/films@champion"))
    tokenizer = Tokenizer.from_file(str(folder / "extra_files" / "tokenizer.json"))
    ids = np.array([tokenizer.encode(text).ids for text in texts])
    alone = mlflow.pyfunc.load_model(str(folder)).predict(ids)
    assert np.allclose(probabilities[0], alone, atol=1e-5)
    assert probabilities[0] == probabilities[1]


def test_rows_that_can_t_be_predicted_are_named(
    releases: tuple[Release, Release], project_folder: Path, tmp_path: Path
) -> None:
    root = str(home_of(project_folder).root)
    (tmp_path / "gap.txt").write_text("a film\n\nmore\n")
    with pytest.raises(DataError, match=r"gap.txt row 2: the text is empty"):
        predict_step.predict.fn(root, "films", str(tmp_path / "gap.txt"), str(tmp_path / "out.parquet"))
    (tmp_path / "other.csv").write_text("words\nx\n")
    with pytest.raises(DataError, match=r"other.csv: no column 'text'"):
        predict_step.predict.fn(root, "films", str(tmp_path / "other.csv"), str(tmp_path / "out.parquet"))
    assert not (tmp_path / "out.parquet").exists()


def test_a_model_without_its_tokenizer_is_not_loaded(
    releases: tuple[Release, Release], project_folder: Path
) -> None:
    home = home_of(project_folder)
    kept = [
        file
        for file in home.mlflow_artifacts.rglob("extra_files/tokenizer.json")
        if file.read_text() == load_version(home, "films", "2").tokenizer
    ]
    assert kept
    content = kept[0].read_text()
    try:
        kept[0].write_text(content.replace('"[MASK]"', '"[XXXX]"', 1))
        with pytest.raises(DataError, match=r"tokenizer.json is missing or not the file that was registered"):
            load_version(home, "films", "2")
    finally:
        kept[0].write_text(content)


def test_the_report_shows_texts_escaped(releases: tuple[Release, Release]) -> None:
    page = Path(releases[0].report).read_text()
    assert "&lt;i&gt;film&lt;/i&gt;" in page
    assert MARK not in page
    assert "trained on the train split" in page


def test_every_promise_is_kept(releases: tuple[Release, Release], project_folder: Path) -> None:
    home = home_of(project_folder)
    for release in releases:
        findings = verify(home.run("films", release.run_key), home, None, None)
        assert [finding for finding in findings if finding.ok is False] == []


def test_a_rollback_restores_the_first_model(releases: tuple[Release, Release], project_folder: Path) -> None:
    root = str(home_of(project_folder).root)
    assert rollback_step.rollback.fn(root, "films", "") == ("2", "1")
    assert rollback_step.rollback.fn(root, "films", "", to="2") == ("1", "2")


@pytest.mark.parametrize("of_file", [False, True], ids=["a version's weights", "a run's weights"])
def test_weights_with_another_tokenizer_are_refused_and_their_tokenizer_is_given(
    of_file: bool, releases: tuple[Release, Release], project_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(project_folder / "home"))
    first = home_of(project_folder).run("films", releases[0].run_key)
    reference = str(first.model / "weights.safetensors") if of_file else "version:1"
    recipe, training = project_folder / "films.py", SETTINGS["training"] | {"init_from": reference}
    with pytest.raises(SettingError, match="has another tokenizer than dataset films") as refused:
        retrain(str(recipe), SETTINGS | {"training": training})
    kept = re.search(r"Copy (\S+) to tokenizer.json beside the recipe", str(refused.value))
    assert kept is not None
    shutil.copyfile(kept[1], project_folder / "tokenizer.json")
    without = recipe.read_text()
    try:
        recipe.write_text(without.replace('"films.tsv"', '"films.tsv", tokenizer="tokenizer.json"'))
        release = retrain(str(recipe), SETTINGS | {"training": training})
    finally:
        recipe.write_text(without)
    text, old = dataset_of(project_folder, release).text, dataset_of(project_folder, releases[0]).text
    assert text is not None
    assert old is not None
    assert text.tokenizer == old.tokenizer


def test_weights_of_a_model_for_shorter_rows_are_accepted(
    releases: tuple[Release, Release], project_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The length of the rows is part of a tokenizer's file, but changes no number of a token."""
    monkeypatch.setenv(HOME_VARIABLE, str(project_folder / "home"))
    longer = {"data": {"max_tokens": 20, "vocabulary": 400}}
    training = SETTINGS["training"] | {"init_from": "version:2"}
    release = retrain(str(project_folder / "films.py"), SETTINGS | longer | {"training": training})
    ours, theirs = dataset_of(project_folder, release).text, dataset_of(project_folder, releases[1]).text
    assert ours is not None
    assert theirs is not None
    assert (ours.length, theirs.length) == (20, 16)
    assert ours.tokenizer != theirs.tokenizer


def test_plan_refuses_weights_with_another_tokenizer_once_the_data_are_prepared(
    releases: tuple[Release, Release], project_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(project_folder / "home"))
    training = SETTINGS["training"] | {"init_from": "version:1"}
    with pytest.raises(SettingError, match=r"another tokenizer .* Copy \S+cache/tokenizers/\w+.json"):
        plan(str(project_folder / "films.py"), SETTINGS | {"training": training})


def test_a_run_of_this_home_is_known_through_a_symbolic_link(
    releases: tuple[Release, Release], project_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(project_folder / "home"))
    linked = tmp_path / "linked"
    linked.symlink_to(project_folder / "home")
    weights = linked / "runs" / "films" / releases[0].run_key[:16] / "model" / "weights.safetensors"
    assert weights.is_file()
    training = SETTINGS["training"] | {"init_from": str(weights)}
    with pytest.raises(SettingError, match="has another tokenizer than dataset films"):
        retrain(str(project_folder / "films.py"), SETTINGS | {"training": training})
