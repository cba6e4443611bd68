"""`from evergreen import ...`: complete, lazy, typed, and sufficient to retrain from a program."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import evergreen
from flows.local.api import _nested
from training.errors import SettingError
from training.settings.overrides import resolve
from training.settings.schema import Settings
from training.trainers.torch.settings import TrainingSettings


def in_fresh_process(code: str, home: Path) -> Any:
    """Run `code` in a new process; returns the JSON value on the last line that it prints."""
    environment = os.environ | {"EVERGREEN_HOME": str(home)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_importing_it_imports_nothing_else(tmp_path: Path) -> None:
    code = (
        "import sys; before = set(sys.modules); import evergreen, json; "
        "print(json.dumps(sorted({name.partition('.')[0] for name in set(sys.modules) - before})))"
    )
    assert set(in_fresh_process(code, tmp_path)) - sys.stdlib_module_names == {"evergreen"}


def test_type_checkers_see_the_same_names() -> None:
    tree = ast.parse(Path(evergreen.__file__).read_text())
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    names = [
        alias.asname or alias.name
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    ]
    assert sorted(names) == sorted(evergreen.__all__)


def test_every_name_is_there_and_no_other() -> None:
    assert all(getattr(evergreen, name) is not None for name in evergreen.__all__)
    assert set(evergreen.__all__) <= set(dir(evergreen))
    with pytest.raises(AttributeError, match="no attribute 'Horse'"):
        _ = evergreen.Horse


@pytest.mark.parametrize(
    ("settings", "nested"),
    [
        ({"training.epochs": 3}, {"training": {"epochs": 3}}),
        ({"training": {"epochs": 3}, "training.seed": 1}, {"training": {"epochs": 3, "seed": 1}}),
        ({"training.seed": 1, "training": {"epochs": 3}}, {"training": {"epochs": 3, "seed": 1}}),
        ({"seed": 1}, {"seed": 1}),
        ({"training.init_from": Path("champion")}, {"training": {"init_from": Path("champion")}}),
        (
            {"training": TrainingSettings(epochs=3), "training.seed": 1},
            {"training": {"epochs": 3, "seed": 1}},
        ),
        (None, {}),
    ],
)
def test_settings_by_dotted_and_by_nested_names(
    settings: dict[str, Any] | None, nested: dict[str, Any]
) -> None:
    assert _nested(settings) == nested


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (Settings(), "settings: expected a dict such as .*, not an object of the type Settings"),
        ([("training.epochs", 3)], "settings: expected a dict"),
        ({"training": 5, "training.epochs": 3}, "settings: training is a section, and is also given the value 5"),
        ({"training.epochs": 3, "training": 5}, "training is a section; set one of"),
        ({3: 4}, "settings: 3 is no name of a setting"),
    ],
)  # fmt: skip
def test_settings_of_another_type_are_refused(
    settings: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVERGREEN_HOME", str(tmp_path))
    for call in (evergreen.retrain, evergreen.plan):
        with pytest.raises(SettingError, match=said):
            call("digits", settings)


def test_a_path_is_a_folder_also_if_its_name_has_another_meaning() -> None:
    given = _nested({"training.init_from": Path("champion"), "data.path": Path("a/b")})
    settings = resolve(Settings(), given)
    assert settings.training.initial_weights == "./champion"
    assert settings.data.path == "a/b"


def test_a_space_of_another_type_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVERGREEN_HOME", str(tmp_path))
    space: Any = {"training.learning_rate": [1e-3]}
    with pytest.raises(SettingError, match=r"--space training\.learning_rate=\[0\.001\]: expected texts"):
        evergreen.tune("digits", space)


@pytest.mark.extended
def test_a_program_plans_retrains_and_predicts(tmp_path: Path) -> None:
    code = f"""
import asyncio, json, time, numpy as np
from pathlib import Path
from PIL import Image
from evergreen import plan, predict, retrain
settings = {{"training.epochs": 1, "scaling.num_workers": 0, "gate.floor": 0.0, "tracking.system_metrics": False}}
planned = plan("digits", settings)
began = time.monotonic()
release = retrain("digits", settings)
again = retrain("digits", settings)
seconds = time.monotonic() - began
images = Path({str(tmp_path)!r}) / "images"
images.mkdir()
Image.fromarray(np.zeros((8, 8), np.uint8)).save(images / "black.png")
predicted = predict("digits", images, Path({str(tmp_path)!r}) / "scored.parquet")
async def further():
    return retrain("digits", settings | {{"seed": 1}}).version
print(json.dumps([planned.run_key == release.run_key, release.alias, again.reused, predicted.rows,
    release.seconds + again.seconds <= seconds, release.goodput.parts["command start"] < release.seconds,
    asyncio.run(further())]))
"""
    assert in_fresh_process(code, tmp_path / "home") == [True, "champion", True, 1, True, True, "2"]
