"""A tracker whose library is missing is refused before a run begins."""

import sys
from pathlib import Path

import pytest

from tasks.checks.tracker_check import check_trackers
from training.errors import SettingError
from training.settings.schema import Settings

REFUSED = r"^tracking\.also: wandb needs the library wandb, .* install it by `make setup EXTRAS=all`"


def tracked_by(*names: str) -> Settings:
    return Settings.model_validate({"tracking": {"also": names}})


def test_a_missing_library_is_refused_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    check_trackers(tracked_by())
    check_trackers(tracked_by("tensorboard"))
    with pytest.raises(SettingError, match=REFUSED):
        check_trackers(tracked_by("tensorboard", "wandb"))


def test_a_folder_of_the_same_name_is_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W&B writes a folder `wandb` to the working directory, which Python imports as an empty package."""
    (tmp_path / "wandb").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    with pytest.raises(SettingError, match=REFUSED):
        check_trackers(tracked_by("wandb"))
