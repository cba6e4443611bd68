"""MLflow's store as a SQLite file: read without MLflow, recognised as moved, and found again."""

import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import registered
from PIL import Image
from registered import MODEL

from tasks import predict, rollback
from tasks.doctor import store
from tasks.registry.aliases import CHAMPION, PREVIOUS, load_version
from tasks.trackers import embedded_store
from tasks.trackers.mlflow_run import connect
from training.errors import ResourceError
from training.storage.paths import Home


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home with two versions, of which the second is champion."""
    home = Home(tmp_path_factory.mktemp("original") / "my home")
    home.root.mkdir()
    client = registered.register(home, versions=2)
    client.set_registered_model_alias(MODEL, PREVIOUS, "1")
    client.set_registered_model_alias(MODEL, CHAMPION, "2")
    return home


@pytest.fixture
def moved(original: Home, tmp_path: Path) -> Any:
    """The home moved to another path; moved back after the test."""
    new_root = tmp_path / "other disk" / "home"
    new_root.parent.mkdir()
    original.root.rename(new_root)
    yield Home(new_root)
    if original.root.is_symlink():
        original.root.unlink()
    if new_root.exists():
        shutil.rmtree(original.root, ignore_errors=True)
        new_root.rename(original.root)


def score(home: Home, folder: Path) -> Any:
    """Predict one image with the champion."""
    (folder / "images").mkdir(exist_ok=True)
    Image.new("RGB", (8, 8), "red").save(folder / "images" / "0.png")
    source, target = str(folder / "images"), str(folder / "out.parquet")
    return predict.predict.fn(str(home.root), MODEL, source, target, overwrite=True)


def commands_in(text: str) -> list[str]:
    """The commands in parentheses in a remedy: move the home back, or link it."""
    parts = [part.partition(")")[0] for part in text.split("(")]
    return [part for part in parts if part.startswith(("mv ", "ln ", "mkdir "))]


def test_a_home_that_was_not_moved(original: Home, tmp_path: Path) -> None:
    embedded_store.check_not_moved(original)
    assert embedded_store.moved_from(Home(tmp_path)) is None
    assert score(original, tmp_path).version == "2"


def test_a_moved_home_is_reported_with_both_paths(original: Home, moved: Home, tmp_path: Path) -> None:
    said = f"this home was moved from {original.root} to {moved.root}"
    with pytest.raises(ResourceError, match=said) as caught:
        score(moved, tmp_path)
    assert "rollback" not in str(caught.value)
    with pytest.raises(ResourceError, match=said):
        rollback.rollback.fn(str(moved.root), MODEL)
    [check] = [check for check in store.embedded_store_checks(moved) if check.ok is False]
    assert check.found.startswith(said)
    assert commands_in(check.remedy) == commands_in(str(caught.value))


@pytest.mark.parametrize("way", [0, 1])
def test_both_remedies_work(original: Home, moved: Home, tmp_path: Path, way: int) -> None:
    before = embedded_store.moved_from(moved)
    assert before is not None
    command = commands_in(embedded_store.moved_remedy(moved, before))[way]
    subprocess.run(["sh", "-c", command], check=True)
    home = original if way == 0 else moved
    embedded_store.check_not_moved(home)
    assert score(home, tmp_path).version == "2"
    connect(None, home)
    assert load_version(home, MODEL, "1").classes


def test_the_remedy_when_the_old_path_is_taken(original: Home, moved: Home, tmp_path: Path) -> None:
    (original.mlflow_artifacts / MODEL).mkdir(parents=True)
    assert embedded_store.moved_from(moved) == original.root
    with pytest.raises(ResourceError, match=r"Another file or folder is at .* now; move that away first"):
        score(moved, tmp_path)


def test_a_copy_beside_its_original_was_not_moved(original: Home, tmp_path: Path) -> None:
    copy = Home(tmp_path / "copy")
    shutil.copytree(original.root, copy.root)
    assert embedded_store.moved_from(copy) is None
    assert score(copy, tmp_path).version == "2"


def test_quoting(tmp_path: Path) -> None:
    remedy = embedded_store.moved_remedy(Home(tmp_path / "b c"), tmp_path / "no such" / "a")
    back, link = commands_in(remedy)
    assert shlex.split(back) == ["mv", str(tmp_path / "b c"), str(tmp_path / "no such" / "a")]
    assert shlex.split(link)[:3] == ["mkdir", "-p", str(tmp_path / "no such")]


@pytest.mark.parametrize("name", ["team/leaves", "blätter", "a b", "ю" * 90])
def test_a_moved_home_is_recognised_by_an_experiment_of_any_name(name: str, tmp_path: Path) -> None:
    before, after = Home(tmp_path / "before"), Home(tmp_path / "after")
    before.root.mkdir()
    artifacts = embedded_store.artifacts_of(before, name)
    (artifacts / "models").mkdir(parents=True)
    connect(None, before).create_experiment(name, artifact_location=artifacts.as_uri())
    assert embedded_store.moved_from(before) is None
    embedded_store.check_writes_here(before, name)
    before.root.rename(after.root)
    assert embedded_store.moved_from(after) == before.root
    before.root.symlink_to(after.root)
    embedded_store.check_writes_here(after, name)


def test_a_run_in_a_copy_beside_the_original_is_refused(tmp_path: Path) -> None:
    original, copy = Home(tmp_path / "original"), Home(tmp_path / "copy")
    original.root.mkdir()
    artifacts = embedded_store.artifacts_of(original, "leaves")
    artifacts.mkdir(parents=True)
    connect(None, original).create_experiment("leaves", artifact_location=artifacts.as_uri())
    shutil.copytree(original.root, copy.root)
    embedded_store.check_writes_here(original, "leaves")
    with pytest.raises(
        ResourceError, match=f"{copy.root}, was moved or copied from {original.root}: .* or a new one"
    ):
        embedded_store.check_writes_here(copy, "leaves")
    embedded_store.check_writes_here(copy, "flowers")  # an experiment that the copy will create
