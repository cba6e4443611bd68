"""No process that Evergreen starts reports its use to a library's makers, unless the user allows the reports."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from training.telemetry import OFF

_LIBRARIES = """
from flows.local.environment import prepare
from training.storage.paths import home_to_write
prepare(home_to_write())
from prefect._internal.analytics.enabled import is_telemetry_enabled
from prefect.settings import get_current_settings
from mlflow.telemetry.utils import is_telemetry_disabled
from huggingface_hub.constants import HF_HUB_DISABLE_TELEMETRY
from ray._common.usage.usage_lib import usage_stats_enabled
print(
    is_telemetry_enabled(), get_current_settings().server.analytics_enabled, not is_telemetry_disabled(),
    not HF_HUB_DISABLE_TELEMETRY, usage_stats_enabled(),
)
"""
_SERVED = """
import os, sys
from flows.cli import ui
from training.storage.paths import home_to_write
os.execv = lambda *_: None
ui.check_port = lambda _: None
ui.serve(home_to_write(), 5000)
print(os.environ["MLFLOW_DISABLE_TELEMETRY"])
"""
# With these, libraries are silent anyway.
_IN_CI = ("CI", "GITHUB_ACTIONS", "PYTEST_CURRENT_TEST", "PYTEST_VERSION")


def said(program: str, folder: Path, **variables: str) -> str:
    """The last line that `program` prints in a process whose environment has no variable of a library's reports."""
    kept = {name: value for name, value in os.environ.items() if name not in OFF and name not in _IN_CI}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=kept | {"EVERGREEN_HOME": str(folder)} | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()[-1]


@pytest.mark.extended
def test_the_libraries_themselves_say_that_reports_are_off(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    assert said(_LIBRARIES, tmp_path) == "False False False False False"


@pytest.mark.extended
def test_a_user_may_allow_reports(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    allowed = {
        "DO_NOT_TRACK": "0",
        "HF_HUB_DISABLE_TELEMETRY": "0",
        "MLFLOW_DISABLE_TELEMETRY": "false",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "true",
        "RAY_USAGE_STATS_ENABLED": "1",
    }
    assert said(_LIBRARIES, tmp_path, **allowed).split()[1::2] == ["True", "True"]


def test_mlflows_pages_report_nothing(tmp_path: Path) -> None:
    assert said(_SERVED, tmp_path) == "true"
