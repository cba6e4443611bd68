"""A recipe that imports a library that is not installed is refused before its workers start."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
from small_runs import write_recipe

from tasks.checks import library_check
from training.errors import SettingError
from training.recipe import load


def test_an_import_inside_a_function_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(write_recipe(tmp_path))
    path.write_text(path.read_text() + "\ndef later():\n    from diffusers import DDPMScheduler\n")
    installed: list[Any] = [None, importlib.util.find_spec("json")]
    monkeypatch.setattr(library_check, "find_spec", lambda _: installed.pop(0))
    wanted = "imports diffusers, which is not installed; install it by `make setup EXTRAS=all`"
    with pytest.raises(SettingError, match=re.escape(wanted)):
        library_check.check_libraries(load(str(path))[1])
    library_check.check_libraries(load(str(path))[1])
