"""Installed packages: none with a known vulnerability, all pinned by digest, from no particular package index."""

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

import flows

ROOT = Path(flows.__file__).parent.parent
LOCK = (ROOT / "requirements.lock").read_text(encoding="utf-8")
_ENTRY = re.compile(
    r"^([A-Za-z0-9._-]+)(\[[^\]]*\])?==(\S+)((?: ;[^\\\n]*)?)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$",
    re.M,
)
# torch: CVE-2025-32434, CVE-2026-24747. Ray: CVE-2026-41486 (2.49 to 2.54). MLflow: CVE-2026-116690.
FLOORS = {"torch": "2.10", "ray": "2.55", "mlflow": "3.17"}
# Later versions stop Prefect 3.8.8's server, or silently stop its schedules.
CEILINGS = {"fastapi": "0.151", "sqlalchemy": "2.1"}


def locked() -> dict[str, Version]:
    return {name.lower().replace("_", "-"): Version(number) for name, _, number, *_ in _ENTRY.findall(LOCK)}


def declared() -> dict[str, Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {(requirement := Requirement(text)).name.lower(): requirement for text in project["dependencies"]}


@pytest.mark.parametrize(("name", "floor"), FLOORS.items())
def test_nothing_with_a_known_hole(name: str, floor: str) -> None:
    assert locked()[name] >= Version(floor)
    assert Version(version(name).partition("+")[0]) >= Version(floor)
    below = Version(f"{floor}.dev0")
    assert not declared()[name].specifier.contains(below, prereleases=True)


@pytest.mark.parametrize(("name", "ceiling"), CEILINGS.items())
def test_nothing_that_stops_prefect(name: str, ceiling: str) -> None:
    assert locked()[name] < Version(ceiling)
    assert not declared()[name].specifier.contains(Version(ceiling))


def test_every_line_of_the_lock_is_an_exact_version_with_digests() -> None:
    assert len(locked()) > 100
    rest = _ENTRY.sub("", LOCK)
    assert [line for line in rest.splitlines() if line.strip() and not line.startswith("#")] == []


def test_the_lock_names_no_host() -> None:
    assert (
        re.findall(r"(?i)https?:|git\+|file:|--(?:extra-)?index-url|--find-links|--trusted-host| @ ", LOCK)
        == []
    )


def test_the_lock_has_all_that_is_declared_and_allowed() -> None:
    versions = locked()
    wrong = [
        name
        for name, requirement in declared().items()
        if not requirement.specifier.contains(versions[name.replace("_", "-")])
    ]
    assert wrong == []
