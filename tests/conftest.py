"""Fixtures and settings of all tests; temporary homes, servers and stores keep tests off the user's installation."""

import atexit
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import s3_server as s3_server_module

from flows.local.environment import NO_SERVICES  # imports nothing that reads the environment

_FOLDER = "EVERGREEN_TESTS_FOLDER"


def _folder() -> str:
    """A temporary folder of this process, in a folder that pytest's first process removes when it ends.

    Processes of pytest-xdist may be killed at the end, before they could remove anything.
    """
    if _FOLDER not in os.environ:
        os.environ[_FOLDER] = tempfile.mkdtemp(prefix="evergreen-tests-")
        atexit.register(shutil.rmtree, os.environ[_FOLDER], ignore_errors=True)
    return tempfile.mkdtemp(dir=os.environ[_FOLDER])


def _isolate() -> None:
    """Set an isolated environment before collection: Prefect and Ray read the environment when first imported."""
    folder = _folder()
    for name in ("PREFECT_API_URL", "MLFLOW_TRACKING_URI", "RAY_ADDRESS", "EVERGREEN_HOME"):
        os.environ.pop(name, None)
    os.environ |= {
        "PREFECT_HOME": f"{folder}/prefect",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_REGISTER_BLOCKS_ON_START": "false",
        "PREFECT_LOGGING_TO_API_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "MPLCONFIGDIR": f"{folder}/matplotlib",
        "RAY_USAGE_STATS_ENABLED": "0",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    os.environ |= NO_SERVICES
    os.environ |= s3_server_module.environment()


_isolate()

import hypothesis  # noqa: E402
import pytest  # noqa: E402
import small_runs  # noqa: E402

from training.records import DatasetVersion  # noqa: E402
from training.settings.schema import Settings  # noqa: E402
from training.storage.paths import HOME_VARIABLE, Home  # noqa: E402
from training.storage.paths import home_to_write as home_of_environment  # noqa: E402

# Test machines share their cores, so the duration of an example says nothing about the code.
hypothesis.settings.register_profile("shared-cores", deadline=None, max_examples=50)
hypothesis.settings.load_profile("shared-cores")


# Files that take half a minute or more run first, so that no test process idles at the end. Files whose
# trainings have several workers alternate with others: side by side, they slow each other two to four times.
_LONG = (
    "test_retrain_on_ray.py",
    "test_retrain.py",
    "test_population_based_training.py",
    "test_unjudged_versions.py",
    "test_secrets.py",
    "test_verify.py",
    "test_tune.py",
    "test_promotion.py",
    "test_tracking_outage.py",
    "test_cli.py",
    "test_chaos.py",
    "test_commands.py",
    "test_resume.py",
    "test_models.py",
    "test_replay.py",
    "test_gate_numbers.py",
    "test_virtual_shards.py",
    "test_retention.py",
    "test_storage_url.py",
    "test_code_closure.py",
    "test_supervise.py",
    "test_facade.py",
    "test_ray.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Reorder whole test files: those in `_LONG` first."""
    items.sort(key=lambda item: _LONG.index(item.path.name) if item.path.name in _LONG else len(_LONG))


class NamedFailures:
    """Names each failure when it happens, with the seconds since the start: a job that is cut off has no summary."""

    def __init__(self, config: pytest.Config):
        self.config, self.began = config, time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write the name of a failed test and the first line of the error."""
        terminal = self.config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            crash = getattr(report.longrepr, "reprcrash", None)
            error = str(crash.message if crash else report.longrepr).partition("\n")[0]
            terminal.write_line("")
            terminal.write_line(
                f"FAILED after {time.monotonic() - self.began:.0f} s: {report.nodeid}: {error}"
            )


def pytest_configure(config: pytest.Config) -> None:
    """Name failures at once where nobody watches; a process of pytest-xdist reports to the first process instead."""
    if os.environ.get("CI") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(NamedFailures(config))


@pytest.fixture(scope="session")
def prefect_harness() -> Iterator[None]:
    """Start a Prefect server for the tests, once a session; flows send no heartbeats, so they end without delay."""
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
    from prefect.testing.utilities import prefect_test_harness

    with (
        temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}),
        prefect_test_harness(server_startup_timeout=120),
    ):
        yield


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """Start a Ray cluster of two CPUs on this machine, once a session."""
    from training.ray_cluster.cluster import ray_cluster

    with ray_cluster(Settings.model_validate({"ray": {"num_cpus": 2}})):
        yield


@pytest.fixture(scope="session")
def s3_server() -> Iterator[s3_server_module.S3Server]:
    """Run a server that speaks the S3 protocol, once a session."""
    with s3_server_module.running_s3_server() as server:
        yield server


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """Create an empty home (Evergreen's installation folder) for this test alone."""
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    return home_of_environment()


@pytest.fixture
def own_tmp(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Create a folder for this test's temporary files, with a path short enough for the Unix sockets of Ray."""
    tmp_path_factory.getbasetemp()  # created at its first use, which must be before TMPDIR changes
    with tempfile.TemporaryDirectory(prefix="eg-", dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", None)
        monkeypatch.delenv("RAY_TMPDIR", raising=False)
        yield Path(folder)


@pytest.fixture(scope="session")
def digits_version(tmp_path_factory: pytest.TempPathFactory) -> DatasetVersion:
    """Prepare all 1,797 digits as a dataset version, in this process."""
    return small_runs.prepared(Home(tmp_path_factory.mktemp("digits")))


@pytest.fixture(scope="session")
def small_version(tmp_path_factory: pytest.TempPathFactory) -> DatasetVersion:
    """Prepare a fixed random subset of 400 digits: training on it takes a fraction of a second per epoch."""
    few = {"max_train_rows": 320, "max_test_rows": 100}
    return small_runs.prepared(Home(tmp_path_factory.mktemp("few-digits")), data=few)


@pytest.fixture
def tiny_settings() -> Callable[..., Settings]:
    """Return :func:`small_runs.tiny_settings`."""
    return small_runs.tiny_settings


@pytest.fixture(autouse=True)
def _log_level_unset() -> Iterator[None]:
    """Reset the level of Evergreen's logger around each test: a flow lowers the level for the whole process."""
    logger = logging.getLogger("evergreen")
    logger.setLevel(logging.NOTSET)
    yield
    logger.setLevel(logging.NOTSET)
