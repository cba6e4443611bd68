"""`results.json`: the lines measured so far, with machine, versions and date; written after every row."""

import datetime
import hashlib
import importlib.metadata
import json
import os
import platform
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from pydantic import Field

from benchmarks.harness.row import Claim
from benchmarks.harness.statistics import Estimate, is_met, is_void
from training.records import Record
from training.storage.files import write_text

_ROOT = Path(__file__).parents[2]
_CODE = ("evergreen", "flows", "tasks", "training", "deployments", "benchmarks")
_KINDS = (".py", ".j2", ".css", ".html", ".yaml")
_DECLARED = "pyproject.toml"
_LOCKS = ("requirements.lock", "requirements-all.lock", "requirements-tensorflow.lock")
_TOOLS = "dev"  # extra with tools for development, on which no number depends
_LETTERS = "UPSNG"  # letters of row ids, in the order of the table
_ROW_ID = re.compile(rf"([{_LETTERS}])(\d+)([a-z]*)")
_PACKAGES = ("torch", "ray", "prefect", "mlflow", "pyarrow", "numpy")


class Line(Record):
    """The result of one claim: `ratio` is its comparison, `low` and `high` the ratio's 95 % confidence interval.

    `a` and `b` are medians in `unit`; `cpu_s` and `peak_mb` are medians over runs, of the whole process tree.
    `spread` is the standard deviation of one run, as a fraction. `met` is None without a goal or an interval, in a
    void run, and for a row that could not be measured, for which `note` gives the reason. `code` is :func:`stamp` on
    `date`, `machine` the text of :func:`described`, and `versions` those of the row's own packages. `hooks` says
    whether Evergreen used its hooks into Ray; a claim may have a line with and one without them.

    `failed_runs` counts the runs of each side that ended with an error; `prepare` stands for the row's preparation, and
    `agreement` for sides that did not do the same work. `met` is False if a run of Evergreen failed.
    `earlier_failures` counts the failed runs of earlier attempts with the same code. `earlier_definition` says that
    the row has changed since: the title is no longer the claim's.
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
    versions: dict[str, str] = Field({})
    failed_runs: dict[str, int] = Field({})
    earlier_failures: int = 0
    earlier_definition: bool = False


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
        before = read(file)
    except ValueError:  # written by an older harness, whose intervals are not comparable
        return now
    if any(getattr(before, name) != getattr(now, name) for name in ("versions", "size")):
        return now
    if before.code != now.code:
        return now.model_copy(update={"rows": before.rows})
    if before.finished and not single_rows:
        return now
    return before.model_copy(update={"machine": now.machine})


def read(file: Path) -> Results:
    """Read `results.json`. Raises ValueError for a file of an older harness."""
    return Results.model_validate_json(file.read_text(encoding="utf-8"))


def stamp() -> str:
    """First 12 hex digits of a sha256 over all that a row runs.

    That is the code and the templates of all packages, benchmarks included, and what is required of other packages:
    their declaration in pyproject.toml, whose settings of tools do not count, and the lock files.
    """
    digest = hashlib.sha256(json.dumps(_requirements(), sort_keys=True).encode())
    sources = (file for package in _CODE for file in (_ROOT / package).rglob("*") if file.suffix in _KINDS)
    locks = (_ROOT / name for name in _LOCKS)
    for file in sorted([*filter(Path.is_file, locks), *sources]):
        content = file.read_bytes()
        digest.update(f"{file.relative_to(_ROOT).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:12]


def _requirements() -> list[Any]:
    """What pyproject.toml requires of Python and of other packages."""
    project = tomllib.loads((_ROOT / _DECLARED).read_text(encoding="utf-8")).get("project", {})
    extras = project.get("optional-dependencies", {})
    return [
        project.get("requires-python"),
        project.get("dependencies"),
        {name: needed for name, needed in extras.items() if name != _TOOLS},
    ]


def add(results: Results, lines: Sequence[Line], file: Path) -> Results:
    """Add a row's lines, replacing older ones of the same claims and hooks; sort all lines and write the file.

    A line of a row that cannot be measured here replaces no numbers: TensorFlow, for one, is in another environment.
    """
    today = datetime.date.today().isoformat()
    here = {"code": results.code, "date": today, "machine": described(results.machine)}
    before = {(line.id, line.hooks): line for line in results.rows if line.code == results.code}
    new = {
        (line.id, line.hooks): line.model_copy(
            update=here | {"earlier_failures": _failures_until(before.get((line.id, line.hooks)))}
        )
        for line in lines
    }
    kept = [_newer(line, new.pop((line.id, line.hooks), line)) for line in results.rows]
    rows = tuple(sorted((*kept, *new.values()), key=_place))
    results = results.model_copy(update={"rows": rows, "date": today})
    write(results, file)
    return results


def _newer(old: Line, new: Line) -> Line:
    tried = new.ratio is not None or new.failed_runs
    return new if tried or old.ratio is None else old


def _failures_until(line: Line | None) -> int:
    """Failed runs of the attempt that `line` records and of those before it."""
    return 0 if line is None else line.earlier_failures + sum(line.failed_runs.values())


def of_claims(results: Results, claims: Mapping[str, Claim]) -> Results:
    """Compare the lines with the present claims, by id.

    A line without a claim is dropped. A line with another title than the claim is marked; its goal stays as it was,
    since the numbers are of another comparison. Other lines are judged by the claim's goal.
    """
    lines = (_of_claim(line, claims[line.id]) for line in results.rows if line.id in claims)
    return results.model_copy(update={"rows": tuple(lines)})


def _of_claim(line: Line, claim: Claim) -> Line:
    if line.title != claim.title:
        return line.model_copy(update={"earlier_definition": True})
    line = line.model_copy(update={"earlier_definition": False})
    met = False if line.failed_runs and line.met is False else None
    if (
        claim.goal is not None
        and not line.failed_runs
        and line.ratio is not None
        and not is_void(line.spread)
    ):
        met = is_met(Estimate(line.ratio, line.low, line.high), claim.goal, claim.at_least)
    return line.model_copy(update={"goal": claim.goal, "at_least": claim.at_least, "met": met})


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


def versions_of(packages: Sequence[str]) -> dict[str, str]:
    """Versions of the installed ones of these packages; xgboost, say, may be of the distribution xgboost-cpu."""
    known = importlib.metadata.packages_distributions() if packages else {}
    return {name: importlib.metadata.version(known[name][0]) for name in packages if name in known}


def _cpu_name() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.machine())


def _gpu_name() -> str:
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else ""
