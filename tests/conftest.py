"""What all tests share. Nothing of a user's installation is touched: homes, servers and stores are fresh folders."""

import atexit
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from flows.local.environment import NO_SERVICES  # imports nothing that reads the environment


def _isolate() -> None:
    """Prefect and Ray read the environment at their first import, which collecting the tests may be."""
    folder = tempfile.mkdtemp(prefix="evergreen-tests-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
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


_isolate()

import hypothesis  # noqa: E402
import pytest  # noqa: E402
import small_runs  # noqa: E402

from training.records import DatasetVersion  # noqa: E402
from training.settings.schema import Settings  # noqa: E402
from training.storage.paths import HOME_VARIABLE, Home  # noqa: E402
from training.storage.paths import home as home_of_environment  # noqa: E402

# Cores are shared, so an example's time says nothing about the code.
hypothesis.settings.register_profile("shared-cores", deadline=None, max_examples=50)
hypothesis.settings.load_profile("shared-cores")


# Files that take a minute or more: begun first, so that of two processes none waits for the other in the end.
_LONG = (
    "test_retrain_on_ray.py",
    "test_supervise.py",
    "test_retrain.py",
    "test_virtual_shards.py",
    "test_secrets.py",
    "test_tracking_outage.py",
    "test_chaos.py",
    "test_commands.py",
    "test_verify.py",
    "test_listening.py",
    "test_ray.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order whole files: long ones first."""
    items.sort(key=lambda item: _LONG.index(item.path.name) if item.path.name in _LONG else len(_LONG))


@pytest.fixture(scope="session")
def prefect_harness() -> Iterator[None]:
    """A Prefect server of the tests' own, started once; flows end without waiting for their heartbeat."""
    from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
    from prefect.testing.utilities import prefect_test_harness

    with (
        temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}),
        prefect_test_harness(server_startup_timeout=120),
    ):
        yield


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """A Ray cluster of two CPUs on this machine, started once and shared."""
    from training.ray_cluster.cluster import ray_cluster

    with ray_cluster(Settings.model_validate({"ray": {"num_cpus": 2}})):
        yield


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """An installation of the test's own."""
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "home"))
    return home_of_environment()


@pytest.fixture
def own_tmp(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files of the test's own, with a path short enough for a session of Ray."""
    tmp_path_factory.getbasetemp()  # made at its first use, which must not be in here
    with tempfile.TemporaryDirectory(prefix="eg-", dir="/tmp") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", None)
        monkeypatch.delenv("RAY_TMPDIR", raising=False)
        yield Path(folder)


@pytest.fixture(scope="session")
def digits_version(tmp_path_factory: pytest.TempPathFactory) -> DatasetVersion:
    """All 1,797 digits, prepared in this process."""
    return small_runs.prepared(Home(tmp_path_factory.mktemp("digits")))


@pytest.fixture(scope="session")
def small_version(tmp_path_factory: pytest.TempPathFactory) -> DatasetVersion:
    """A fixed random subset of 400 digits: an epoch takes a fraction of a second."""
    few = {"max_train_rows": 300, "max_test_rows": 100}
    return small_runs.prepared(Home(tmp_path_factory.mktemp("few-digits")), data=few)


@pytest.fixture
def tiny_settings() -> Callable[..., Settings]:
    """:func:`small_runs.tiny_settings`."""
    return small_runs.tiny_settings


@pytest.fixture(autouse=True)
def _log_level_unset() -> Iterator[None]:
    """A flow lets Evergreen's log through for the rest of its process, which the tests share."""
    logger = logging.getLogger("evergreen")
    logger.setLevel(logging.NOTSET)
    yield
    logger.setLevel(logging.NOTSET)
