"""The registry of an MLflow server whose database is PostgreSQL and whose requests several processes answer."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow_servers import mlflow_server
from postgres_server import postgres_server
from test_registry_in_memory import check_alike

from tasks.registry.lock import LOCK_TAG
from tasks.trackers.mlflow_store import connect
from training.storage.paths import Home

pytestmark = pytest.mark.slow
_TURNS, _PROCESSES = 6, 4


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("mlflow")
    with postgres_server() as database, mlflow_server(folder, database, workers=2) as server:
        yield server.uri


@pytest.fixture
def client(uri: str, tmp_path: Path) -> MlflowClient:
    return connect(uri, Home(tmp_path / "one"))


_CONTENDER = """
import os, sys
from pathlib import Path
from tasks.registry.lock import registry_lock
from tasks.trackers.mlflow_store import connect
from training.storage.paths import Home

uri, home, marker, turns = sys.argv[1:]
client = connect(uri, Home(Path(home)))
for _ in range(int(turns)):
    with registry_lock(client, Home(Path(home)), "shared") as lease:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))  # fails if another process holds the lock
        lease.check()
        print(lease.turn, flush=True)
        os.remove(marker)
"""


def test_one_process_of_two_homes_at_a_time_holds_the_lock(
    uri: str, client: MlflowClient, tmp_path: Path
) -> None:
    client.create_registered_model("shared")
    commands = [
        [
            sys.executable,
            "-c",
            _CONTENDER,
            uri,
            tmp_path / ("one", "two")[number % 2],
            tmp_path / "marker",
            str(_TURNS),
        ]
        for number in range(_PROCESSES)
    ]
    with ExitStack() as ended:
        running = [
            ended.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ))
            for command in commands
        ]
        printed = [process.communicate()[0] for process in running]
    assert [process.returncode for process in running] == [0] * _PROCESSES
    turns = sorted(int(line) for text in printed for line in text.splitlines())
    assert turns == list(range(1, _TURNS * _PROCESSES + 1))
    tags = client.get_registered_model("shared").tags
    assert [text for name, text in tags.items() if name.startswith(LOCK_TAG)] == [f'{{"turn": {turns[-1]}}}']
    client.delete_registered_model("shared")


def test_the_registry_in_memory_is_like_one_on_postgres(client: MlflowClient) -> None:
    """So that what the model checker explores holds for this database, too."""
    check_alike(client, 3)
