"""Training with its artifacts in an S3 store: workers never open the run's folder, and no kill changes the model."""

import shutil
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from crashes import history, points
from s3_server import S3Server
from slow_runs import send, slow_job, when_at_step

from training.attempts.heartbeat import Beat
from training.attempts.history import read_attempts, read_failures
from training.attempts.job import TrainingJob
from training.errors import StopRequestedError
from training.records import DatasetVersion, TrainedModel
from training.storage.objects.base import open_store
from training.storage.paths import Home
from training.supervision.launch import launch

pytestmark = pytest.mark.usefixtures("ray_session")


def outcome(job: TrainingJob, trained: TrainedModel) -> tuple[Any, ...]:
    return trained.weights_digest, history(trained), points(job)


@pytest.fixture(scope="module")
def calm(
    small_version: DatasetVersion, tmp_path_factory: pytest.TempPathFactory, ray_session: None
) -> tuple[Any, ...]:
    """The outcome of an undisturbed training without a store."""
    job = slow_job(Home(tmp_path_factory.mktemp("calm")), small_version)
    return outcome(job, launch(job))


@pytest.fixture
def storage(s3_server: S3Server, tmp_path: Path) -> dict[str, str]:
    return {"url": f"{s3_server.new_bucket()}/evergreen", "node_cache": str(tmp_path / "node")}


def files_in(root: Path, beats: list[Beat]) -> list[str]:
    """Files under `root` that the workers have open, mapped or as working directory."""
    found = []
    for beat in beats:
        process = psutil.Process(beat.pid)
        names = [file.path for file in process.open_files()] + [part.path for part in process.memory_maps()]
        found += [name for name in (*names, process.cwd()) if name.startswith(str(root))]
    return found


def test_a_killed_worker_and_a_lost_home_change_nothing(
    home: Home, small_version: DatasetVersion, storage: dict[str, str], calm: tuple[Any, ...], tmp_path: Path
) -> None:
    job = slow_job(home, small_version, storage=storage)
    opened: list[str] = []

    def kill(beats: list[Beat]) -> None:
        opened.extend(files_in(home.root, beats) + files_in(Path(small_version.path), beats))
        send(1, signal.SIGKILL)(beats)

    hit = when_at_step(job.paths, 20, kill)
    trained = launch(job)
    hit.join()
    assert opened == []
    assert outcome(job, trained) == calm
    first, second = read_attempts(job.paths)
    assert (first.number, second.number) == (1, 2)
    assert second.first_step >= 12  # the checkpoint before the kill came from the store
    assert len(read_failures(job.paths)) == 1
    assert list(job.paths.checkpoints.iterdir()) == []
    assert any("attempt 2" in line or "training starts" in line for line in log_lines(job))
    store = open_store(storage["url"])
    assert not [key for key in store.keys("") if key.rpartition("/")[2] in ("fence", "stop", "save")]
    assert not [key for key in store.keys("") if "/beats/" in key or "/logs/" in key]

    # The same run in another home, as on a new machine: the finished training comes from the store.
    other = slow_job(Home(tmp_path / "other"), small_version, storage=storage)
    assert outcome(other, launch(other)) == calm
    assert len(read_attempts(other.paths)) == 2
    assert other.paths.metrics.read_bytes() == job.paths.metrics.read_bytes()


def log_lines(job: TrainingJob) -> list[str]:
    return [line for file in job.paths.logs.glob("rank-*.jsonl") for line in file.read_text().splitlines()]


def test_a_stopped_training_continues_in_another_home(
    home: Home, small_version: DatasetVersion, storage: dict[str, str], calm: tuple[Any, ...], tmp_path: Path
) -> None:
    job = slow_job(home, small_version, storage=storage)
    hit = when_at_step(job.paths, 20, lambda _beats: job.paths.stop.touch())
    with pytest.raises(StopRequestedError):
        launch(job)
    hit.join()
    reached = [one.first_step for one in read_attempts(job.paths)]
    assert reached == [0]
    shutil.rmtree(home.root)
    other = slow_job(Home(tmp_path / "other"), small_version, storage=storage)
    assert outcome(other, launch(other)) == calm
    (attempt,) = read_attempts(other.paths)
    assert attempt.number == 2
    assert attempt.first_step >= 20
