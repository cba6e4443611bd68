"""A malicious model of XGBoost in the registry is refused before any of its code runs."""

import importlib.util
import json
import os
import py_compile
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from bombs import armed, goes_off
from boosted_tables import RegisteredTrees, mixed_table, registered_trees

from tasks.model_formats.table_models import columns_text
from tasks.registry.aliases import load_version
from tasks.registry.own_digests import OwnDigests, keep_digests, record_of
from tasks.registry.safe_loading import FILE_TAG, METADATA_TAG
from tasks.trackers.mlflow_run import connect
from training.errors import DataError
from training.records import TableSchema
from training.storage.files import digest_file, digest_json
from training.storage.paths import Home

_LOAD = "import sys, mlflow.pyfunc; mlflow.pyfunc.load_model(sys.argv[1])"
_LOAD_BOOSTER = "import sys, mlflow.xgboost; mlflow.xgboost.load_model(sys.argv[1])"
_WITHOUT = """
import sys
from pathlib import Path
sys.modules["xgboost"] = None  # so that importing it fails
from tasks.registry.aliases import load_version
from tasks.trackers.mlflow_run import connect
from training.storage.paths import Home
home = Home(Path(sys.argv[1]))
connect(None, home)
load_version(home, "boosted", "1")
"""
Attack = Callable[[Path, Path], None]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> RegisteredTrees:
    """An unmodified registry."""
    home = Home(tmp_path_factory.mktemp("registry"))
    return registered_trees(home, mixed_table(home, home.root / "files", 300), rounds=2)


@pytest.fixture
def registry(sound: RegisteredTrees, tmp_path: Path) -> Any:
    """The registry, whose files a test may change; they are restored after the test."""
    connect(None, sound.home)
    shutil.copytree(sound.files, tmp_path / "kept")
    yield sound
    shutil.rmtree(sound.files)
    shutil.copytree(tmp_path / "kept", sound.files)


def edit(files: Path, **changes: dict[str, Any]) -> None:
    """Change fields of flavors in the model's `MLmodel`."""
    described = yaml.safe_load((files / "MLmodel").read_text())
    for flavor, fields in changes.items():
        described["flavors"].setdefault(flavor, {}).update(fields)
    (files / "MLmodel").write_text(yaml.safe_dump(described))


def innocent(folder: Path, mark: Path) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "innocent.py").write_text(f"open({str(mark)!r}, 'w').close()\nclass Booster: pass\n")


def own_class(files: Path, mark: Path) -> None:
    """mlflow.xgboost imports the class that the model names, here from a folder that comes with it."""
    innocent(files / "code", mark)
    edit(files, xgboost={"code": "code", "model_class": "innocent.Booster"})


def own_loader(files: Path, mark: Path) -> None:
    innocent(files / "code", mark)
    edit(files, python_function={"loader_module": "innocent"})


def own_code(files: Path, mark: Path) -> None:
    """The loader that the model names, with a line more."""
    (file,) = (files / "code").glob("*.py")
    file.write_text(f"open({str(mark)!r}, 'w').close()\n" + file.read_text())


def code_under_the_name_of_its_bytes(files: Path, mark: Path) -> None:
    """Changed code whose file and loader are named by the digest of the changed bytes, as those of Evergreen are."""
    own_code(files, mark)
    (file,) = (files / "code").glob("*.py")
    named = file.with_name(f"evergreen_table_{digest_file(file)[:12]}.py")
    file.rename(named)
    edit(files, python_function={"loader_module": named.stem})


def module_in_place_of_a_library(files: Path, mark: Path) -> None:
    """A module that the loader imports, from the folder that MLflow puts first on Python's path."""
    (files / "code" / "xgboost.py").write_text(f"open({str(mark)!r}, 'w').close()\n")


def loader_in_another_folder(files: Path, mark: Path) -> None:
    """The code of Evergreen stays in its folder, and MLflow gets another folder with a file of the same name."""
    own_code(files, mark)
    (files / "code").rename(files / "other")
    edit(files, python_function={"code": "other"})


def python_model(files: Path, mark: Path) -> None:
    """MLflow's format for arbitrary Python objects: a pickle."""
    (files / "python_model.pkl").write_bytes(armed(mark))
    function = {
        "python_model": "python_model.pkl",
        "cloudpickle_version": "3.0",
        "loader_module": "mlflow.pyfunc.model",
    }
    described = yaml.safe_load((files / "MLmodel").read_text())
    del described["flavors"]["python_function"]["code"]
    described["flavors"]["python_function"] |= function
    (files / "MLmodel").write_text(yaml.safe_dump(described))


def refused(registry: RegisteredTrees, why: str) -> None:
    with pytest.raises(DataError, match=f"version 1 is not a model that Evergreen registered: .*{why}"):
        load_version(registry.home, "boosted", "1")


@pytest.mark.extended
@pytest.mark.parametrize(
    "attack", [own_class, own_loader, own_code, module_in_place_of_a_library, python_model]
)
def test_it_is_refused_and_nothing_in_it_runs(
    registry: RegisteredTrees, tmp_path: Path, attack: Attack, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "executed"
    attack(registry.files, mark)
    monkeypatch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "true")
    refused(registry, "")
    assert not mark.exists()
    program = _LOAD_BOOSTER if attack is own_class else _LOAD
    assert goes_off(mark, program, str(registry.files), MLFLOW_ALLOW_PICKLE_DESERIALIZATION="true"), "a dud"


@pytest.mark.parametrize(
    ("attack", "why"),
    [
        (code_under_the_name_of_its_bytes, "is not the code of this or an earlier version"),
        (loader_in_another_folder, r"it is loaded by evergreen_table_\w+ from other"),
    ],
)
def test_code_of_others_under_a_name_of_evergreen_is_refused(
    registry: RegisteredTrees, tmp_path: Path, attack: Attack, why: str
) -> None:
    """These attacks run code in plain MLflow as `own_code` does."""
    attack(registry.files, tmp_path / "executed")
    refused(registry, why)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"xgboost": {"model_class": "subprocess.Popen"}}, "it is a subprocess.Popen"),
        ({"xgboost": {"model_class": "xgboost.sklearn.XGBClassifier"}}, "it is a xgboost.sklearn"),
        ({"xgboost": {"model_format": "json"}}, "in the format json"),
        ({"xgboost": {"data": "../model.ubj"}}, "it is loaded from ../model.ubj"),
        ({"xgboost": {"code": "code"}}, "xgboost has code"),
        ({"python_function": {"code": "."}}, r"it is loaded by evergreen_table_\w+ from \."),
        ({"python_function": {"model_code_path": "x.py"}}, "python_function has model_code_path"),
        ({"python_function": {"loader_module": "mlflow.sklearn"}}, "python_function has code"),
        ({"python_function": {"loader_module": "mlflow.sklearn", "code": None}}, "loaded by mlflow.sklearn"),
        ({"python_function": {"loader_module": "mlflow.xgboost", "code": None, "data": "x"}}, "from x"),
        ({"python_function": {"loader_module": "evergreen_table_x"}}, "code holds evergreen_table_"),
        ({"python_function": {"loader_module": "evergreen_table_../x"}}, "code holds evergreen_table_"),
        ({"python_function": {"data": "other"}}, "python_function has data"),
        ({"sklearn": {"pickled_model": "model.pkl"}}, "its flavors are"),
        ({"pytorch": {"model_data": "data"}}, "its flavors are"),
    ],
)
def test_a_description_that_evergreen_would_not_write_is_refused(
    registry: RegisteredTrees, change: dict[str, Any], why: str
) -> None:
    edit(registry.files, **change)
    refused(registry, why)


@pytest.mark.parametrize("name", ["model.pkl", "sitecustomize.py", "constraints.txt", "xgboost.py"])
def test_a_file_more_is_refused(registry: RegisteredTrees, name: str) -> None:
    (registry.files / name).touch()
    refused(registry, f"it holds {name}")


def changed_columns(change: Callable[[Any], Any]) -> Callable[[str], str]:
    """Change the columns in the text of `columns.json`."""

    def changed(text: str) -> str:
        described = json.loads(text)
        change(described["columns"])
        return json.dumps(described)

    return changed


COLUMNS: dict[str, Callable[[str], str]] = {
    "another order": changed_columns(lambda columns: columns.reverse()),
    "a column less": changed_columns(lambda columns: columns.pop()),
    "a column twice": changed_columns(lambda columns: columns.append(columns[0])),
    "another order of the categories": changed_columns(lambda columns: columns[-1]["categories"].reverse()),
    "a kind that is a number": changed_columns(lambda columns: columns[0].update(kind=7)),
    "a name that is a list": changed_columns(lambda columns: columns[0].update(name=["n0"])),
    "a million categories": changed_columns(lambda columns: columns[-1].update(categories=["x"] * 1_000_000)),
    "columns that are no list": lambda text: text.replace('"columns": [', '"columns": 1, "more": ['),
    "another encoding": lambda text: text.replace('"encoding": 1', '"encoding": 2'),
    "another flavor": lambda text: text.replace("xgboost", "pytorch"),
    "a space more": lambda text: text + " ",
    "nested deeply": lambda _: "[" * 100_000,
    "nothing": lambda _: "",
}


@pytest.mark.parametrize("name", COLUMNS)
def test_other_columns_than_those_of_the_metadata_are_refused(registry: RegisteredTrees, name: str) -> None:
    """Evergreen does not even parse the file: its bytes follow from the metadata, which pydantic validates."""
    file = registry.files / "columns.json"
    text = file.read_text()
    file.write_text(COLUMNS[name](text))
    assert file.read_text() != text
    refused(registry, r"columns\.json has other columns than the metadata")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda table: table["columns"].append(table["columns"][0]), "two columns of one name"),
        (lambda table: table["columns"][0].update(kind="code"), "its metadata describe no table"),
        (lambda table: table.update(columns="all"), "its metadata describe no table"),
        (lambda table: table.clear(), "its metadata describe no table"),
        (lambda table: table["columns"].reverse(), "other columns than the metadata"),
    ],
)
def test_a_table_that_evergreen_would_not_describe_is_refused(
    registry: RegisteredTrees, change: Callable[[Any], Any], why: str
) -> None:
    described = yaml.safe_load((registry.files / "MLmodel").read_text())
    change(described["metadata"]["table"])
    (registry.files / "MLmodel").write_text(yaml.safe_dump(described))
    refused(registry, why)


@pytest.mark.extended
@pytest.mark.parametrize("mode", [py_compile.PycInvalidationMode.UNCHECKED_HASH, None], ids=["hash", "time"])
def test_compiled_code_beside_the_code_is_refused(
    registry: RegisteredTrees, tmp_path: Path, mode: py_compile.PycInvalidationMode | None
) -> None:
    """Plain Python runs the compiled code if its header has the time and size of the code, or asks for no check."""
    mark = tmp_path / "executed"
    (registry.files / "code" / "__pycache__").unlink()
    (file,) = (registry.files / "code").iterdir()
    evil = tmp_path / file.name
    evil.write_text(f"open({str(mark)!r}, 'w').close()\n".ljust(file.stat().st_size))
    os.utime(evil, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
    planted = Path(importlib.util.cache_from_source(str(file)))
    py_compile.compile(str(evil), str(planted), invalidation_mode=mode)
    refused(
        registry, "code/__pycache__ can have compiled code, .*; remove this folder from the model's files"
    )
    assert not mark.exists()
    assert goes_off(mark, _LOAD, str(registry.files)), "a dud"


def test_another_file_in_place_of_compiled_code_is_refused(registry: RegisteredTrees) -> None:
    (registry.files / "code" / "__pycache__").write_bytes(b"x" * 87)
    refused(registry, "code/__pycache__ can have compiled code")


def test_a_model_without_the_file_in_place_of_compiled_code_loads(registry: RegisteredTrees) -> None:
    """As earlier versions of Evergreen registered them."""
    (registry.files / "code" / "__pycache__").unlink()
    assert load_version(registry.home, "boosted", "1").problem == "classification"


def test_a_folder_in_place_of_a_file_is_refused(registry: RegisteredTrees) -> None:
    (registry.files / "model.ubj").unlink()
    (registry.files / "model.ubj").mkdir()
    (registry.files / "model.ubj" / "part").touch()
    refused(registry, "model.ubj is no regular file")


def test_a_link_is_refused(registry: RegisteredTrees, tmp_path: Path) -> None:
    """A download resolves links; a model that is loaded from a folder may have some."""
    from tasks.registry.safe_loading import check_files

    folder = tmp_path / "model"
    shutil.copytree(registry.files, folder)
    check_files(folder, "model boosted version 1", {})
    (folder / "model.ubj").rename(tmp_path / "elsewhere.ubj")
    (folder / "model.ubj").symlink_to(tmp_path / "elsewhere.ubj")
    with pytest.raises(DataError, match=r"model\.ubj is no regular file"):
        check_files(folder, "model boosted version 1", {})


def test_a_pickle_under_the_models_name_is_refused(registry: RegisteredTrees, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    (registry.files / "model.ubj").write_bytes(armed(mark))
    refused(registry, "model.ubj: no UBJ of XGBoost")
    assert not mark.exists()


def test_trees_that_lead_out_of_the_model_are_refused(registry: RegisteredTrees) -> None:
    file = registry.files / "model.ubj"
    content = file.read_bytes()
    at = content.index(b"left_children[$l#L") + len(b"left_children[$l#L") + 8
    file.write_bytes(content[:at] + struct.pack(">i", 1 << 30) + content[at + 4 :])
    refused(registry, "a node whose child is outside of the tree")


def test_other_trees_than_those_registered_are_refused(registry: RegisteredTrees, tmp_path: Path) -> None:
    file = registry.files / "model.ubj"
    content = file.read_bytes()
    at = content.index(b"base_weights[$d#L") + len(b"base_weights[$d#L") + 8
    file.write_bytes(content[:at] + struct.pack(">f", 0.125) + content[at + 4 :])
    with pytest.raises(DataError, match=r"model\.ubj is not the file that was registered"):
        load_version(registry.home, "boosted", "1")
    keep_digests(
        registry.home, "boosted", "1", OwnDigests(model_file=digest_file(tmp_path / "kept" / "model.ubj"))
    )
    tags = registry.client.get_model_version("boosted", "1").tags
    try:  # someone who can write to the registry changes the tag as well
        registry.client.set_model_version_tag("boosted", "1", FILE_TAG, digest_file(file))
        with pytest.raises(DataError, match="not the file that this home registered"):
            load_version(registry.home, "boosted", "1")
    finally:
        record_of(registry.home, "boosted", "1").unlink()
        registry.client.set_model_version_tag("boosted", "1", FILE_TAG, tags[FILE_TAG])


def test_other_categories_than_those_registered_are_refused(registry: RegisteredTrees) -> None:
    """The files agree with each other, but the model would take one kind for another."""
    described = yaml.safe_load((registry.files / "MLmodel").read_text())
    registered = digest_json(described["metadata"])
    trees = digest_file(registry.files / "model.ubj")
    table = described["metadata"]["table"]
    kind = next(column for column in table["columns"] if column["name"] == "kind")
    kind["categories"].reverse()
    (registry.files / "MLmodel").write_text(yaml.safe_dump(described))
    (registry.files / "columns.json").write_text(columns_text(TableSchema.model_validate(table), "xgboost"))
    assert load_version(registry.home, "boosted", "1") is not None, "nothing compares the metadata"
    keep_digests(registry.home, "boosted", "1", OwnDigests(model_file=trees, metadata=registered))
    try:
        with pytest.raises(DataError, match="the metadata in MLmodel are not those that this home"):
            load_version(registry.home, "boosted", "1")
    finally:
        record_of(registry.home, "boosted", "1").unlink()
    registry.client.set_model_version_tag("boosted", "1", METADATA_TAG, registered)
    try:
        with pytest.raises(DataError, match=f"differs from the tag {METADATA_TAG}"):
            load_version(registry.home, "boosted", "1")
    finally:
        registry.client.delete_model_version_tag("boosted", "1", METADATA_TAG)


@pytest.mark.extended
def test_a_machine_without_xgboost_names_the_command(registry: RegisteredTrees) -> None:
    command = [sys.executable, "-c", _WITHOUT, str(registry.home.root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("training.errors.SettingError: model boosted version 1 is loaded by xgboost")
    assert last.endswith("`make setup EXTRAS=all`")


def test_a_sound_model_answers_and_leaves_no_copy(
    registry: RegisteredTrees, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    loaded = load_version(registry.home, "boosted", "1")
    answers = loaded.predict(np.full((3, 4), np.nan, np.float32))
    assert np.allclose(answers.sum(1), 1)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("evergreen-model-")] == []
