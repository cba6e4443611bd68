"""A process that works in several homes, one after the other, keeps Prefect's state in the home at hand."""

import os
import subprocess
import sys
from pathlib import Path
from urllib.request import proxy_bypass_environment

import pytest

from flows.local import environment

_TWO_HOMES = """
import os, sys
from pathlib import Path
from flows.local.environment import prepare
from training.storage.paths import Home
for folder in sys.argv[1:]:
    prepare(Home(Path(folder)))
    print(os.environ["PREFECT_HOME"], os.environ["PREFECT_SERVER_ALLOW_EPHEMERAL_MODE"])
"""


@pytest.mark.parametrize("chosen", [None, "/srv/prefect"])
def test_the_home_of_a_later_call_replaces_that_of_an_earlier_call(
    chosen: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.delenv("PREFECT_HOME", raising=False)
    monkeypatch.setenv("PREFECT_PROFILES_PATH", str(tmp_path / "none.toml"))
    if chosen is not None:
        monkeypatch.setenv("PREFECT_HOME", chosen)
    folders = [str(tmp_path / name) for name in "aba"]
    done = subprocess.run(
        [sys.executable, "-c", _TWO_HOMES, *folders], capture_output=True, text=True, check=True
    )
    expected = [f"{chosen or folder + '/prefect'} true" for folder in folders]
    assert done.stdout.splitlines() == expected


def test_retries_of_requests_are_not_logged() -> None:
    """urllib3 warns before each retry of a request to MLflow."""
    code = """
import logging
from flows.local.environment import quieten
logger = logging.getLogger("urllib3.connectionpool")
print(logger.isEnabledFor(logging.WARNING))
quieten()
print(logger.isEnabledFor(logging.WARNING), logger.isEnabledFor(logging.ERROR))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False", "True"]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {"NO_PROXY": "127.0.0.1,localhost"}),
        ({"no_proxy": ".corp.example"}, {"no_proxy": ".corp.example,127.0.0.1,localhost"}),
        (
            {"no_proxy": "a, localhost", "NO_PROXY": "b"},
            {"no_proxy": "a,localhost,127.0.0.1", "NO_PROXY": "b,127.0.0.1,localhost"},
        ),
        ({"no_proxy": "*"}, {"no_proxy": "*"}),
    ],
)
def test_no_proxy_is_asked_for_this_machine(
    given: dict[str, str], expected: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "")  # so that the test's end restores it
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    environment._reach_this_machine_directly()
    assert {name: os.environ[name] for name in ("no_proxy", "NO_PROXY") if name in os.environ} == expected
    assert proxy_bypass_environment("127.0.0.1:4200")
