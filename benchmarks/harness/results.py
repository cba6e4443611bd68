"""`results.json`: the lines measured so far, with machine, versions and date; written after every row."""

import datetime
import hashlib
import importlib.metadata
import json
import os
import platform
import re
from pathlib import Path
from typing import Any

import psutil
from pydantic import Field

from training.records import Record
from training.storage.files import write_text

_ROOT = Path(__file__).parents[2]
_CODE = ("evergreen", "flows", "tasks", "training", "deployments", "benchmarks")
_KINDS = (".py", ".j2", ".css", ".html", ".yaml")
_DECLARED = "pyproject.toml"
_LETTERS = "PSNG"  # letters of row ids, in the order of the table
_ROW_ID = re.compile(rf"([{_LETTERS}])(\d+)([a-z]*)")
_PACKAGES = ("torch", "ray", "prefect", "mlflow", "pyarrow", "numpy")


class Line(Record):
    """The result of one claim: `ratio` is its comparison, `low` and `high` the ratio's 95 % confidence interval.

    `a` and `b` are medians in `unit`; `cpu_s` and `peak_mb` are medians over runs, of the whole process tree.
    `spread` is the standard deviation of one run, as a fraction. `met` is None without a goal or an interval, in a
    void run, and for a row that could not be measured, for which `note` gives the reason. `code` is :func:`stamp` on
    `date`, and `machine` the text of :func:`described`. `hooks` says whether Evergreen used its hooks into Ray; a claim
    may have a line with and one without them.
    """

    id: str
    title: str
    hooks: bool = True
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    goal: float | None = None
    at_least: bool = True
    met: bool | None = None
    a: float | None = None
    b: float | None = None
    unit: str = ""
    pairs: int = 0
    spread: float | None = None
    cpu_s: dict[str, float] = Field({})
    peak_mb: dict[str, float] = Field({})
    note: str = ""
    code: str = ""
    date: str = ""
    machine: str = ""


class Results(Record):
    """A run of the suite. `finished` is False while rows are missing.

    `machine`, `code` and `date` belong to the newest line.
    """

    machine: dict[str, Any]
    versions: dict[str, str]
    date: str
    code: str
    size: str
    finished: bool = False
    rows: tuple[Line, ...] = ()


def begin(file: Path, size: str, single_rows: bool) -> Results:
    """Start a new run, or continue the run in `file` if it was interrupted or if `single_rows` are measured.

    Lines measured with other code are kept, marked with that code, until they are measured again; lines measured with
    other package versions or in another size are dropped. A run may be continued on another machine: both sides of a
    row are measured on one machine, which is recorded with the row.
    """
    now = Results(
        machine=machine(),
        versions=versions(),
        date=datetime.date.today().isoformat(),
        code=stamp(),
        size=size,
    )
    if not file.is_file():
        return now
    try:
        before = Results.model_validate_json(file.read_text(encoding="utf-8"))
    except ValueError:  # written by an older harness, whose intervals are not comparable
        return now
    if any(getattr(before, name) != getattr(now, name) for name in ("versions", "size")):
        return now
    if before.code != now.code:
        return now.model_copy(update={"rows": before.rows})
    if before.finished and not single_rows:
        return now
    return before.model_copy(update={"machine": now.machine})


def stamp() -> str:
    """First 12 hex digits of the sha256 of all packages' code and templates, benchmarks included."""
    digest = hashlib.sha256()
    found = (file for package in _CODE for file in (_ROOT / package).rglob("*") if file.suffix in _KINDS)
    for file in sorted([_ROOT / _DECLARED, *found]):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(_ROOT).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:12]


def add(results: Results, lines: list[Line], file: Path) -> Results:
    """Add a row's lines, replacing older ones of the same claims and hooks; sort all lines and write the file."""
    here = {
        "code": results.code,
        "date": datetime.date.today().isoformat(),
        "machine": described(results.machine),
    }
    new = {(line.id, line.hooks): line.model_copy(update=here) for line in lines}
    kept = [new.pop((line.id, line.hooks), line) for line in results.rows]
    rows = tuple(sorted((*kept, *new.values()), key=_place))
    results = results.model_copy(update={"rows": rows})
    write(results, file)
    return results


def _place(line: Line) -> tuple[int, int, str, bool]:
    """Sort key: P1a before P1b, P4 before P10, with hooks before without; lines of one row keep their order."""
    row = _ROW_ID.match(line.id)
    assert row is not None, line.id
    letter, number, part = row.groups()
    return _LETTERS.index(letter), int(number), part, not line.hooks


def write(results: Results, file: Path) -> None:
    """Write `results.json`."""
    write_text(file, json.dumps(results.model_dump(), indent=1) + "\n")


def machine() -> dict[str, Any]:
    """Properties of the machine on which the numbers depend."""
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "system": f"{platform.system()} {platform.release()}",
        "gpu": _gpu_name(),
        "data": "Fashion-MNIST"
        if os.environ.get("EVERGREEN_TEST_DATA")
        else "scikit-learn's digits, enlarged",
    }


def described(machine: dict[str, Any]) -> str:
    """The properties of a machine as readable text."""
    return (
        f"{machine['cores']} cores of {machine['cpu']}, {machine['memory_gb']} GB, {machine['gpu'] or 'no GPU'}; "
        f"{machine['system']}; images: {machine['data']}"
    )


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that influence the numbers."""
    return {"python": platform.python_version()} | {
        name: importlib.metadata.version(name) for name in _PACKAGES
    }


def _cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def _gpu_name() -> str:
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else ""
