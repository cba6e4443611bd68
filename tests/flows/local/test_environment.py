"""A process that works in several homes, one after the other, keeps Prefect's state in the home at hand."""

import subprocess
import sys
from pathlib import Path

import pytest

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
