"""The runs of a recipe, the newest first, while another process removes some."""

import os
from pathlib import Path

from training.storage.paths import newest_first


def test_runs_are_listed_newest_first_without_those_that_are_being_removed(tmp_path: Path) -> None:
    for number, name in enumerate(("old", "new", ".newest.removed", "empty")):
        (tmp_path / name).mkdir()
        if name != "empty":
            (tmp_path / name / "plan").touch()
            os.utime(tmp_path / name / "plan", ns=(0, number))
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone" / "plan").symlink_to(tmp_path / "nowhere")  # listed, but its time can't be read
    assert [file.parent.name for file in newest_first(tmp_path, "plan")] == ["new", "old"]
    assert newest_first(tmp_path / "nowhere", "plan") == []
