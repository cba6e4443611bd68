"""Which command installs a library that a part needs: in a clone that of its Makefile, elsewhere that of pip."""

from pathlib import Path

import pytest

from training import seams


@pytest.mark.parametrize(
    ("library", "in_clone", "elsewhere"),
    [
        ("xgboost", "make setup EXTRAS=all", 'pip install "evergreen-ml[boosting]"'),
        ("keras.layers", "make setup EXTRAS=all", 'pip install "evergreen-ml[keras]"'),
        ("tensorflow", "make setup EXTRAS=tensorflow", 'pip install "evergreen-ml[tensorflow]"'),
        ("another", "pip install another", "pip install another"),
    ],
)
def test_the_command_that_installs_a_library(
    library: str, in_clone: str, elsewhere: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert seams.install_command(library) == in_clone
    monkeypatch.setattr(seams, "_LOCK", tmp_path / "requirements-all.lock")
    assert seams.install_command(library) == elsewhere
