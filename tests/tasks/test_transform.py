"""A damaged dataset is refused before training and prepared again; the damaged copy is kept aside."""

import logging
import shutil
from pathlib import Path

import pytest
from small_runs import tiny_settings

from flows.prepare import prepare
from tasks.transform import set_damaged_aside
from training.data.dataset import open_columns
from training.data.manifest import MANIFEST
from training.data.sources.digits import Digits
from training.plan import RunPlan, identify
from training.recipe import load
from training.storage.paths import Home


def planned(home: Home) -> RunPlan:
    _, ref = load("digits")
    return identify(home, ref, tiny_settings(), Digits().fetch(home.sources), None)


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


@pytest.mark.usefixtures("prefect_harness")
def test_a_damaged_version_is_made_again_from_its_source(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    plan = planned(home)
    version = prepare(plan)
    folder = Path(version.path)
    images = open_columns(version, "train").inputs.tobytes()
    for number, name in enumerate([version.parts["train"][0].path, MANIFEST, version.parts["test"][0].path]):
        flip(folder / name)
        with caplog.at_level(logging.WARNING, "evergreen"):
            assert plan.find_dataset() is None
        assert str(folder / name) in caplog.text
        again = prepare(plan)
        assert (again, plan.find_dataset()) == (version, version)
        assert open_columns(again, "train").inputs.tobytes() == images
        assert (folder.parent / f"{folder.name}.damaged-{number}").is_dir()
        assert f"{folder} is damaged (" in caplog.text
        assert f"was set aside as {folder.name}.damaged-{number}" in caplog.text


def test_what_is_set_aside_never_takes_the_place_of_what_was(tmp_path: Path) -> None:
    folder = tmp_path / "version"
    for number in range(3):
        folder.mkdir()
        (folder / "file").write_text(str(number))
        set_damaged_aside(folder)
    shutil.rmtree(tmp_path / "version.damaged-0")
    folder.mkdir()
    set_damaged_aside(folder)
    assert {path.name for path in tmp_path.iterdir()} == {f"version.damaged-{number}" for number in range(3)}
    assert (tmp_path / "version.damaged-2" / "file").read_text() == "2"
    set_damaged_aside(folder)  # nothing to set aside
