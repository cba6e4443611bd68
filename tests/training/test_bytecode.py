"""Bytecode of an environment: what is compiled, what is left alone, and what Python makes of it."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.doctor.packages import bytecode_check
from training.bytecode import compile_all, compiled_share, folders


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "site" / "package"
    (folder / "tests").mkdir(parents=True)
    (folder / "__init__.py").write_text("VALUE = 1\n")
    (folder / "part.py").write_text("from package import VALUE\n")
    (folder / "newer_python.py").write_text("def f(: pass\n")
    (folder / "tests" / "test_long.py").write_text("# a long test\n" * 1000)
    return folder


def _bytecode(module: Path) -> Path:
    return Path(importlib.util.cache_from_source(str(module)))


def _value(package: Path) -> str:
    environment = {
        "PATH": os.environ["PATH"],
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": str(package.parent),
    }
    program = "import package, sys; print(package.VALUE)"
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_compiles_once_and_again_what_changed(package: Path) -> None:
    assert compiled_share([package]) == 0
    assert compile_all([package]) == 2  # neither what this Python can't compile nor a library's long test
    assert compiled_share([package]) == 0.5
    assert compile_all([package]) == 0
    (package / "__init__.py").write_text("VALUE = 2\n")
    assert _value(package) == "2"
    assert compile_all([package]) == 1
    assert _value(package) == "2"


def test_bytecode_stays_valid_when_the_environment_is_copied(package: Path) -> None:
    compile_all([package])
    source, bytecode = package / "part.py", _bytecode(package / "part.py")
    compiled = bytecode.read_bytes()
    os.utime(source, (1, 1))
    assert compile_all([package]) == 0
    assert bytecode.read_bytes() == compiled


def test_python_ignores_a_file_that_an_interruption_left_incomplete(package: Path) -> None:
    compile_all([package])
    bytecode = _bytecode(package / "__init__.py")
    bytecode.write_bytes(bytes(16) + bytecode.read_bytes()[16:30])
    assert _value(package) == "1"
    assert compile_all([package]) == 1


def test_the_folders_are_the_environment_and_evergreen() -> None:
    names = {folder.name for folder in folders()}
    assert {"site-packages", "evergreen", "training", "deployments"} <= names
    assert all(folder.is_dir() for folder in folders())


def test_doctor_tells_of_an_environment_without_bytecode(package: Path) -> None:
    check = bytecode_check([package])
    assert (check.ok, check.found) == (None, "0% of the modules are compiled")
    assert check.remedy == f"{sys.executable} -m training.bytecode"
    compile_all([package])
    assert bytecode_check([package]).ok
