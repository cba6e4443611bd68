"""A new tracker, problem, trainer, source, format or store is one file, one line in `training/seams.py`, one test file.

Each test copies the product to a temporary folder, adds the file, the line and the test file from `tests/new_parts/`
there, and runs the contract tests of the seam on the new part, and the tests that list all parts of the seam.
"""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import evergreen

ROOT = Path(evergreen.__file__).parents[1]
COPIED = ("benchmarks", "deployments", "evergreen", "flows", "tasks", "tests", "training")
GIVEN = Path(__file__).parents[1] / "new_parts"


@dataclass(frozen=True)
class NewPart:
    """The file of a new part, its line and the registry in which it stands, the folder of its test file."""

    file: str
    registry: str
    line: str
    tests: str
    lists: tuple[str, ...] = ()  # tests that list all parts of the seam

    @property
    def name(self) -> str:
        return Path(self.file).stem

    def add_to(self, root: Path) -> Path:
        """Add the part to the copy of the product in `root`; returns the path of its test file."""
        shutil.copy(GIVEN / f"{self.name}.py", root / self.file)
        seams = root / "training" / "seams.py"
        entries = re.compile(rf"^{self.registry}\b[^\n]* = {{\n.*?(?=^}})", re.MULTILINE | re.DOTALL)
        text, count = entries.subn(lambda match: f"{match[0]}    {self.line}\n", seams.read_text())
        assert count == 1
        seams.write_text(text)
        test = root / self.tests / f"test_{self.name}.py"
        shutil.copy(GIVEN / f"contract_of_{self.name}.py", test)
        return test


PARTS = (
    NewPart(
        "tasks/trackers/csv_file.py",
        "TRACKERS",
        '"csv_file": "tasks.trackers.csv_file:CsvFile",',
        "tests/tasks/trackers",
    ),
    NewPart(
        "training/problems/absolute_error.py",
        "PROBLEMS",
        '"absolute_error": "training.problems.absolute_error:AbsoluteError",',
        "tests/training/problems",
    ),
    NewPart(
        "training/trainers/linear.py",
        "TRAINERS",
        '"linear": "training.trainers.linear:LinearSettings",',
        "tests/training/trainers",
        (
            "tests/training/trainers/test_trainer_seam.py::test_the_import_contract_of_trainers_lists_each",
            "tests/training/trainers/test_trainer_seam.py::test_a_trainer_answers_for_itself[linear]",
            "tests/training/trainers/test_trainer_seam.py::test_settings_and_trainer_import_no_heavy_library[linear]",
            "tests/training/test_identity.py::test_every_trainer_is_listed",
            "tests/chaos/test_chaos_records.py::test_every_trainer_has_a_workload",
        ),
    ),
    NewPart(
        "training/data/sources/npz.py",
        "SOURCES",
        '"npz": "training.data.sources.npz:Npz",',
        "tests/training/data/sources",
    ),
    NewPart(
        "tasks/model_formats/xgboost_json.py",
        "FORMATS",
        '"xgboost_json": FormatPart("tasks.model_formats.xgboost_json", ("xgboost",)),',
        "tests/tasks/model_formats",
        ("tests/training/trainers/test_trainer_seam.py::test_a_trainer_answers_for_itself[xgboost]",),
    ),
    NewPart(
        "training/storage/objects/sqlite.py",
        "STORES",
        '"sqlite": "training.storage.objects.sqlite",',
        "tests/training/storage/objects",
    ),
)


@pytest.mark.extended
@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
def test_a_new_part_is_one_file_and_one_line(part: NewPart, tmp_path: Path) -> None:
    for name in COPIED:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    test = part.add_to(tmp_path)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "0", str(test), *part.lists],
        cwd=tmp_path,
        env=environment | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(re.findall(r"(\d+) passed", done.stdout)[-1]) >= 6
