"""Source files that change between their digest and the last row that is read of them."""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import tiny_settings

from flows import prepare as module
from flows.prepare import prepare
from tasks.train import keep_plan
from training.data.sources.idx import FILES
from training.errors import DataError
from training.plan import RunPlan, choose_source, identify
from training.recipe import load
from training.storage.paths import Home

pytestmark = pytest.mark.usefixtures("prefect_harness")


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Idx files of 40 images of 8x8 pixels in each split."""
    folder, draw = tmp_path / "raw", np.random.default_rng(0)
    folder.mkdir()
    for (_, part), name in FILES.items():
        values = draw.integers(0, 256, (40, 8, 8)) if part == "images" else np.arange(40) % 10
        header = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
        (folder / name).write_bytes(header + values.astype(np.uint8).tobytes())
    return folder


def planned(home: Home, raw: Path | None, name: str = "mnist") -> RunPlan:
    recipe, ref = load(name)
    settings = tiny_settings(data={"path": str(raw)}) if raw else tiny_settings()
    files = choose_source(recipe, settings, home).fetch(home.sources / ref.name)
    return keep_plan(identify(home, ref, settings, files))


def test_rows_of_files_that_changed_meanwhile_are_thrown_away(
    home: Home, raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = raw / FILES["train", "images"]
    content = file.read_bytes()
    shards = module.plan_shards

    def changed(*arguments: Any, **options: Any) -> Any:
        file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        return shards(*arguments, **options)

    plan = planned(home, raw)
    with monkeypatch.context() as patch:
        patch.setattr(module, "plan_shards", changed)
        with pytest.raises(DataError, match="the files changed while they were read"):
            prepare(plan)
    assert plan.find_dataset() is None
    file.write_bytes(content)  # the raw rows of the changed file must not be used for this plan
    made = prepare(planned(home, raw))
    other = prepare(planned(Home(home.root / "other"), raw))
    assert [part.sha256 for part in made.parts["train"]] == [part.sha256 for part in other.parts["train"]]


def test_raw_rows_of_an_interrupted_start_are_read_again(
    home: Home, raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files may have had another content at that time, and the present one before and after."""

    class Killed(BaseException):
        pass

    def die(*_: Any) -> None:
        raise Killed

    file = raw / FILES["train", "images"]
    content = file.read_bytes()
    plan = planned(home, raw)
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with monkeypatch.context() as patch:
        patch.setattr(module, "check_unchanged", die)
        with pytest.raises(Killed):
            prepare(plan)
    file.write_bytes(content)
    made = prepare(plan)
    other = prepare(planned(Home(home.root / "other"), raw))
    assert [part.sha256 for part in made.parts["train"]] == [part.sha256 for part in other.parts["train"]]


def test_files_that_stay_as_they_are_pass(home: Home, raw: Path) -> None:
    assert prepare(planned(home, raw)).rows("train") == 40


def test_a_relative_path_of_a_recipe_is_that_of_its_file_when_the_files_are_compared(
    home: Home, raw: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tmp_path / "own.py"
    recipe.write_text(
        "from evergreen import IdxFiles, Recipe\n"
        "from training.recipes.mnist import resnet18\n"
        f"recipe = Recipe('own', source=IdxFiles('MNIST', path={raw.name!r}), build_model=resnet18)\n"
    )
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert prepare(planned(home, None, str(recipe))).rows("train") == 40
