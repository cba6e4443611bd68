"""Checks of Python, of the packages against the requirements that Evergreen declares, and of their bytecode."""

import platform
import sys
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tasks.doctor import Check
from training import bytecode

PROJECT = "evergreen-ml"
# Requirements whose violation causes errors that do not name the package.
_WHY = {
    "fastapi": "with this version, Prefect's server does not start (Body() got an unexpected keyword argument)",
    "sqlalchemy": "with this version, Prefect's schedules start no runs and log no error",
    "ray": "a Ray cluster accepts only clients of its own version",
}
_MOST_COMPILED = 0.5


class Declared(NamedTuple):
    """The project's requirements, and the place from which they were read (`origin`)."""

    python: str
    requirements: list[Requirement]
    origin: str


def package_checks() -> Iterator[Check]:
    """Check Python's version, then the packages: one result for all that fit, and one for each other package."""
    wanted = declared()
    if wanted is None:
        yield Check(
            name="packages",
            ok=False,
            found=f"no installed {PROJECT} and no pyproject.toml beside the code",
            remedy="Install the project: `pip install .` in its folder.",
        )
        return
    yield python_check(wanted.python)
    wrong = [
        check for requirement in wanted.requirements if (check := requirement_check(requirement)) is not None
    ]
    right = len(wanted.requirements) - len(wrong)
    summary = f"{right} of {len(wanted.requirements)} as required by {wanted.origin}"
    yield Check(name="packages", ok=not wrong, found=summary, remedy="See below." if wrong else "")
    yield from wrong
    yield bytecode_check(bytecode.folders())


def bytecode_check(folders: list[Path]) -> Check:
    """Say when most modules have no bytecode: each command then takes about twice as long to start."""
    share = bytecode.compiled_share(folders)
    return Check(
        name="bytecode",
        ok=share >= _MOST_COMPILED or None,
        found=f"{share:.0%} of the modules are compiled",
        remedy="" if share >= _MOST_COMPILED else f"{sys.executable} -m training.bytecode",
    )


def declared() -> Declared | None:
    """The requirements of the installed project, else of the checkout with this code; None when there is neither."""
    try:
        about = metadata.metadata(PROJECT)
    except metadata.PackageNotFoundError:
        return _of_checkout(Path(__file__).parents[2] / "pyproject.toml")
    requirements = _needed(metadata.requires(PROJECT) or [])
    return Declared(about["Requires-Python"], requirements, f"{PROJECT} {about['Version']}")


def python_check(wanted: str) -> Check:
    """Check the version of this interpreter against `requires-python`."""
    version = platform.python_version()
    fits = SpecifierSet(wanted).contains(version, prereleases=True)
    remedy = "" if fits else f"Create the environment again with Python {wanted}."
    return Check(name="Python", ok=fits, found=f"{version} ({sys.executable})", remedy=remedy)


def requirement_check(wanted: Requirement) -> Check | None:
    """The failed check of one package, or None when the package meets its requirement."""
    try:
        version = metadata.version(wanted.name)
    except metadata.PackageNotFoundError:
        version = ""
    if version and wanted.specifier.contains(version, prereleases=True):
        return None
    why = f" ({_WHY[wanted.name]})" if version and wanted.name in _WHY else ""
    return Check(
        name=f"package {wanted.name}",
        ok=False,
        found=f"{version or 'not installed'}; required is {wanted.specifier or 'any version'}{why}",
        remedy=f"pip install '{wanted}'",
    )


def _of_checkout(file: Path) -> Declared | None:
    if not file.is_file():
        return None
    project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
    if project["name"] != PROJECT:
        return None
    return Declared(project["requires-python"], _needed(project["dependencies"]), str(file))


def _needed(lines: list[str]) -> list[Requirement]:
    """The requirements that apply on this platform, without those of extras."""
    parsed = map(Requirement, lines)
    return [
        requirement
        for requirement in parsed
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    ]
