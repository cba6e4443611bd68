"""A malicious model in the registry is refused by every step that loads models, before any of its code runs."""

import io
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import yaml
from bombs import Bomb, armed, goes_off
from hostile_model import arm
from hostile_programs import HOSTILE, sound_program, write_hostile
from mlflow import MlflowClient
from PIL import Image

from tasks.inference.scoring import ScoringActor
from tasks.model_formats.torch_export import log_serving_model
from tasks.predict import predict
from tasks.registry.aliases import CHAMPION, PREVIOUS, champion_of, load_version
from tasks.registry.own_digests import OwnDigests, keep_digests, record_of
from tasks.registry.rollback import roll_back
from tasks.registry.safe_loading import FILE_TAG
from tasks.trackers.mlflow_run import connect
from training.errors import DataError
from training.records import DatasetVersion
from training.storage.files import digest_file
from training.storage.paths import Home

MODEL = "brightness"
_LOAD = "import sys, mlflow.pyfunc; mlflow.pyfunc.load_model(sys.argv[1])"
Attack = Callable[[Path, Path], None]


class Registry(NamedTuple):
    """A home whose registry has one model with two versions of the same files, which are in `files`."""

    home: Home
    client: MlflowClient
    files: Path


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    """An unmodified registry."""
    from torch import nn

    class Brightness(nn.Module):
        def forward(self, images):
            mean = images.float().flatten(1).mean(1, keepdim=True) / 255
            return nn.functional.pad(mean, (0, 1), value=0.5)

    home = Home(tmp_path_factory.mktemp("registry"))
    client = connect(None, home)
    artifacts = home.mlflow_artifacts / MODEL
    run = client.create_run(client.create_experiment(MODEL, artifact_location=artifacts.as_uri())).info.run_id
    nothing: dict[str, Any] = dict.fromkeys(("fingerprint", "path", "source_digest", "source_origin"), "-")
    version = DatasetVersion(
        name=MODEL,
        classes=("a", "b"),
        shape=(1, 4, 4),
        parts={},
        label_counts={},
        mean=(0,),
        std=(1,),
        **nothing,
    )
    uri = log_serving_model(
        run, Brightness().eval(), version, np.zeros((2, 1, 4, 4), np.uint8), {"classes": ["a", "b"]}
    )
    client.create_registered_model(MODEL)
    (program,) = artifacts.rglob("model.pt2")
    for alias in (PREVIOUS, CHAMPION):
        made = client.create_model_version(MODEL, uri, run, model_id=uri.removeprefix("models:/"))
        client.set_registered_model_alias(MODEL, alias, made.version)
    return Registry(home, client, program.parent.parent)


@pytest.fixture
def registry(sound: Registry, tmp_path: Path) -> Any:
    """The registry, whose files a test may change; they are restored after the test."""
    connect(None, sound.home)
    kept = tmp_path / "kept"
    shutil.copytree(sound.files, kept)
    yield sound
    shutil.rmtree(sound.files)
    shutil.copytree(kept, sound.files)


def edit(files: Path, change: Callable[[dict[str, Any]], None]) -> None:
    described = yaml.safe_load((files / "MLmodel").read_text())
    change(described["flavors"])
    (files / "MLmodel").write_text(yaml.safe_dump(described))


def pickled_module(files: Path, mark: Path) -> None:
    """The format of mlflow.pytorch before torch.export: a pickle, and the name of a module to import."""
    (files / "data" / "model.pt2").unlink()
    (files / "data" / "model.pth").write_bytes(armed(mark))
    (files / "data" / "pickle_module_info.txt").write_text("pickle")


def pickle_beside(files: Path, mark: Path) -> None:
    """mlflow.pytorch prefers model.pth if both files exist."""
    (files / "data" / "model.pth").write_bytes(armed(mark))
    (files / "data" / "pickle_module_info.txt").write_text("pickle")


def pickle_inside(files: Path, mark: Path) -> None:
    """The exported program with its example inputs replaced by a pickle."""
    file = files / "data" / "model.pt2"
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    (inputs,) = (name for name in members if "sample_inputs" in name)
    content = io.BytesIO()
    torch.save({"example": Bomb(mark)}, content)
    with zipfile.ZipFile(file, "w") as archive:
        for name, old in members.items():
            archive.writestr(name, content.getvalue() if name == inputs else old)


def own_loader(files: Path, mark: Path) -> None:
    """Code that comes with the model, which MLflow puts on Python's path and imports."""
    (files / "code").mkdir()
    (files / "code" / "innocent.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    edit(files, lambda flavors: flavors["python_function"].update(loader_module="innocent", code="code"))


def own_unpickler(files: Path, mark: Path) -> None:
    """The usual loader, configured to unpickle with a module from the model's folder."""
    (files / "code").mkdir()
    (files / "code" / "innocent.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    (files / "data" / "model.pth").write_bytes(b"")
    (files / "data" / "pickle_module_info.txt").write_text("innocent")
    edit(files, lambda flavors: flavors["python_function"].update(code="code"))


def python_model(files: Path, mark: Path) -> None:
    """MLflow's format for arbitrary Python objects: a pickle."""
    (files / "python_model.pkl").write_bytes(armed(mark))
    function = {
        "python_model": "python_model.pkl",
        "cloudpickle_version": "3.0",
        "loader_module": "mlflow.pyfunc.model",
    }
    edit(files, lambda flavors: flavors["python_function"].update(function))
    edit(files, lambda flavors: flavors["python_function"].pop("data"))


def expression_inside(files: Path, mark: Path) -> None:
    """Sizes in the exported program that sympy evaluates; test_programs.py shows that this executes code."""
    arm(files / "data" / "model.pt2", mark)


ATTACKS = [
    pickled_module,
    pickle_beside,
    pickle_inside,
    own_loader,
    own_unpickler,
    python_model,
]


@pytest.mark.extended
@pytest.mark.parametrize("attack", ATTACKS)
def test_it_is_refused_and_nothing_in_it_runs(
    registry: Registry, tmp_path: Path, attack: Attack, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "executed"
    attack(registry.files, mark)
    monkeypatch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "true")
    with pytest.raises(DataError, match="version 2"):
        load_version(registry.home, MODEL, "2")
    assert not mark.exists()
    assert goes_off(mark, _LOAD, str(registry.files), MLFLOW_ALLOW_PICKLE_DESERIALIZATION="true"), "a dud"


def load_to_score(registry: Registry) -> None:
    images = registry.home.root / "images"
    images.mkdir(exist_ok=True)
    Image.new("L", (4, 4)).save(images / "0.png")
    predict.fn(str(registry.home.root), MODEL, str(images), str(registry.home.root / "out.parquet"))


def load_in_an_actor(registry: Registry) -> None:
    ScoringActor(MODEL, "2", None, str(registry.home.root), 512, "probability")


def load_to_return(registry: Registry) -> None:
    roll_back(registry.client, registry.home, MODEL, "")


# The evaluation and `verify` load a model as the actor does; they have tests in test_promotion.py and test_verify.py.
STEPS = [load_to_score, load_in_an_actor, load_to_return]


@pytest.fixture(scope="module")
def members() -> dict[str, bytes]:
    return sound_program()


@pytest.mark.parametrize(
    "attack",
    [expression_inside, pickle_beside]
    + [pytest.param(attack, marks=pytest.mark.extended) for attack in ATTACKS if attack is not pickle_beside],
)
@pytest.mark.parametrize("step", STEPS)
def test_every_step_that_loads_a_model_refuses_it(
    registry: Registry, tmp_path: Path, step: Callable[[Registry], None], attack: Attack
) -> None:
    mark = tmp_path / "executed"
    attack(registry.files, mark)
    check_refused(registry, step, mark)


@pytest.mark.extended
@pytest.mark.parametrize("attack", HOSTILE, ids=lambda attack: attack.__name__)
def test_every_step_refuses_each_hostile_program(
    registry: Registry, members: dict[str, bytes], tmp_path: Path, attack: Callable[..., Any]
) -> None:
    file, mark = write_hostile(tmp_path, members, attack)
    shutil.copy(file, registry.files / "data" / "model.pt2")
    for step in STEPS:
        check_refused(registry, step, mark)


def check_refused(registry: Registry, step: Callable[[Registry], None], mark: Path) -> None:
    with pytest.raises(DataError, match="not a model that Evergreen registered"):
        step(registry)
    assert not mark.exists()
    assert champion_of(registry.client, MODEL) == "2"


def test_other_bytes_than_those_registered_are_refused_before_they_are_read(registry: Registry) -> None:
    program = registry.files / "data" / "model.pt2"
    registry.client.set_model_version_tag(MODEL, "2", FILE_TAG, digest_file(program))
    try:
        assert load_version(registry.home, MODEL, "2") is not None
        program.write_bytes(program.read_bytes() + b"\0")
        with pytest.raises(DataError, match="its digest differs"):
            load_version(registry.home, MODEL, "2")
    finally:
        registry.client.delete_model_version_tag(MODEL, "2", FILE_TAG)


def test_the_homes_own_record_is_believed_and_not_the_registrys_tag(registry: Registry) -> None:
    """Someone who can write to the registry can change the tag together with the file."""
    program = registry.files / "data" / "model.pt2"
    keep_digests(registry.home, MODEL, "2", OwnDigests(model_file=digest_file(program)))
    try:
        assert load_version(registry.home, MODEL, "2") is not None
        other = repacked(program)
        registry.client.set_model_version_tag(MODEL, "2", FILE_TAG, digest_file(other))
        with pytest.raises(DataError, match="is not the file that this home registered"):
            load_version(registry.home, MODEL, "2")
        record_of(registry.home, MODEL, "2").unlink()  # another home has no such record
        assert load_version(registry.home, MODEL, "2") is not None
    finally:
        record_of(registry.home, MODEL, "2").unlink(missing_ok=True)
        registry.client.delete_model_version_tag(MODEL, "2", FILE_TAG)


def repacked(program: Path) -> Path:
    """Rewrite the program's archive: the same members in a file with other bytes."""
    with zipfile.ZipFile(program) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(program, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return program


@pytest.mark.parametrize("damage", ["cut short", "one digit", "of an earlier version, cut short"])
def test_a_record_that_is_damaged_is_no_reason_to_refuse(
    damage: str, registry: Registry, caplog: pytest.LogCaptureFixture
) -> None:
    digest = digest_file(registry.files / "data" / "model.pt2")
    keep_digests(registry.home, MODEL, "2", OwnDigests(model_file=digest))
    file = record_of(registry.home, MODEL, "2")
    text = file.read_text()
    other = digest[:-1] + ("0" if digest[-1] != "0" else "1")
    file.write_text(
        {"cut short": text[:40], "one digit": text.replace(digest, other)}.get(damage, digest[:40])
    )
    try:
        assert load_version(registry.home, MODEL, "2") is not None
    finally:
        file.unlink()
    assert f"{file}: damaged" in caplog.text
    assert "compared with the registry's digests only" in caplog.text


def test_a_record_of_an_earlier_version_is_believed(registry: Registry) -> None:
    file = record_of(registry.home, MODEL, "2")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{'0' * 64}\n")
    try:
        with pytest.raises(DataError, match="is not the file that this home registered"):
            load_version(registry.home, MODEL, "2")
    finally:
        file.unlink()


def test_a_sound_model_answers_and_leaves_no_copy(
    registry: Registry, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    loaded = load_version(registry.home, MODEL, "2")
    answers = loaded.predict(np.full((3, 1, 4, 4), 255, np.uint8))
    assert np.allclose(answers, [[1.0, 0.5]] * 3)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("evergreen-model-")] == []
