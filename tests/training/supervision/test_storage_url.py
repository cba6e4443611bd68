"""Training with its artifacts in an S3 store: workers never open the run's folder, and no kill changes the model."""

import re
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any

import psutil
import pytest
from boosted_tables import boosted_job, mixed_table
from crashes import crashed, outcome
from s3_server import S3Server
from slow_runs import send, slow_job, when_at_step

from training.attempts.fence import RivalDriverError
from training.attempts.heartbeat import Beat, Heartbeat, read_beats
from training.attempts.history import read_attempts, read_failures
from training.attempts.job import TrainingJob
from training.checkpoints.opening import stored_run
from training.checkpoints.stored_run import StoredRun
from training.errors import StopRequestedError, TransientError
from training.ray_cluster.stored_datasets import publish
from training.records import DatasetVersion
from training.storage.objects.base import open_store
from training.storage.paths import Home
from training.supervision import supervise
from training.supervision.launch import launch


@pytest.fixture
def storage(s3_server: S3Server, tmp_path: Path) -> dict[str, str]:
    return {"url": f"{s3_server.new_bucket()}/evergreen", "node_cache": str(tmp_path / "node")}


def files_in(root: Path, beats: list[Beat]) -> list[str]:
    """Files under `root` that the workers have open, mapped or as working directory."""
    paths = []
    for beat in beats:
        process = psutil.Process(beat.pid)
        names = [file.path for file in process.open_files()] + [part.path for part in process.memory_maps()]
        paths += [name for name in (*names, process.cwd()) if name.startswith(str(root))]
    return paths


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_a_killed_worker_and_a_lost_home_change_nothing(
    home: Home, small_version: DatasetVersion, storage: dict[str, str], calm: tuple[Any, ...], tmp_path: Path
) -> None:
    job = slow_job(home, small_version, storage=storage)
    opened: list[str] = []
    left: list[int] = []

    def kill(beats: list[Beat]) -> None:
        left.extend(beat.pid for beat in beats)
        opened.extend(files_in(home.root, beats) + files_in(Path(small_version.path), beats))
        send(1, signal.SIGKILL)(beats)

    hit = when_at_step(job.paths, 20, kill)
    trained = launch(job)
    hit.join()
    assert opened == []
    temporary = Path(tempfile.gettempdir())
    assert not [folder for pid in left for folder in temporary.glob(f"evergreen-worker-{pid}-*")]
    assert outcome(job, trained) == calm
    first, second = read_attempts(job.paths)
    assert (first.number, second.number) == (1, 2)
    assert second.first_step >= 12  # the checkpoint before the kill came from the store
    assert len(read_failures(job.paths)) == 1
    assert list(job.paths.checkpoints.iterdir()) == []
    # The second worker's log continues the first worker's.
    assert starts(job) == [first.first_step, second.first_step]
    store = open_store(storage["url"])
    assert not [key for key in store.keys("") if key.rpartition("/")[2] in ("fence", "stop", "save")]
    assert not [key for key in store.keys("") if "/beats/" in key or "/logs/" in key]

    # The same run in another home, as on a new machine: the finished training comes from the store.
    other = slow_job(Home(tmp_path / "other"), small_version, storage=storage)
    assert outcome(other, launch(other)) == calm
    assert len(read_attempts(other.paths)) == 2
    assert other.paths.metrics.read_bytes() == job.paths.metrics.read_bytes()


def starts(job: TrainingJob) -> list[int]:
    """The first step of each attempt, from the log that the first worker's node sent to the driver."""
    log = (job.paths.logs / "rank-0.jsonl").read_text()
    return [int(step) for step in re.findall(r"training starts at step (\d+) of", log)]


@pytest.mark.usefixtures("ray_session")
@pytest.mark.slow
def test_a_stopped_training_continues_in_another_home(
    home: Home, small_version: DatasetVersion, storage: dict[str, str], calm: tuple[Any, ...], tmp_path: Path
) -> None:
    job = slow_job(home, small_version, storage=storage)
    hit = when_at_step(job.paths, 20, lambda _beats: job.paths.stop.touch())
    with pytest.raises(StopRequestedError):
        launch(job)
    hit.join()
    reached = [record.first_step for record in read_attempts(job.paths)]
    assert reached == [0]
    shutil.rmtree(home.root)
    other = slow_job(Home(tmp_path / "other"), small_version, storage=storage)
    assert outcome(other, launch(other)) == calm
    (attempt,) = read_attempts(other.paths)
    assert attempt.number == 2
    assert attempt.first_step >= 20


@pytest.mark.usefixtures("ray_session")
@pytest.mark.slow
def test_a_stream_of_images_comes_from_the_store(
    home: Home, small_version: DatasetVersion, storage: dict[str, str], tmp_path: Path
) -> None:
    """The driver's disk holds only the manifest: rows come from the store, to the workers and to Ray Data."""
    here = Path(shutil.copytree(small_version.path, tmp_path / "version"))
    version = small_version.model_copy(update={"path": str(here)})
    publish(version, open_store(storage["url"]))
    for folder in [path for path in here.iterdir() if path.is_dir()]:
        shutil.rmtree(folder)
    job = slow_job(home, version, workers=2, storage=storage, data={"feed": "stream"}, training={"epochs": 2})
    trained = launch(job)
    assert (trained.attempts, trained.world_size) == (1, 2)
    assert [row.epoch for row in trained.history] == [1, 2]
    assert all(row.rows == trained.steps // 2 * 48 for row in trained.history)
    assert any(key.endswith("weights.safetensors") for key in open_store(storage["url"]).keys("runs"))


@pytest.mark.usefixtures("ray_session")
@pytest.mark.slow
def test_rows_of_boosted_trees_come_from_the_store(
    home: Home, storage: dict[str, str], tmp_path: Path
) -> None:
    """As above, the driver's disk holds only the manifest."""
    version = mixed_table(home, tmp_path / "files", 600)
    calm = launch(boosted_job(home, version, workers=2, data={"feed": "stream"}))
    publish(version, open_store(storage["url"]))
    for folder in [path for path in Path(version.path).iterdir() if path.is_dir()]:
        shutil.rmtree(folder)
    job = boosted_job(home, version, workers=2, name="stored", storage=storage, data={"feed": "stream"})
    trained = launch(job)
    assert (trained.attempts, trained.world_size) == (1, 2)
    assert trained.weights_digest == calm.weights_digest


def in_process(home: Home, version: DatasetVersion, url: str, **sections: Any) -> TrainingJob:
    return slow_job(
        home,
        version,
        workers=0,
        training={"epochs": 2},
        storage={"url": url},
        scaling={"use_gpu": "no"},
        **sections,
    )


def test_a_store_that_is_away_when_an_attempt_begins_is_waited_for(
    home: Home,
    small_version: DatasetVersion,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    begin, times = StoredRun.begin, [0]

    def away_twice(run: StoredRun, driver: str, at_least: int) -> int:
        times[0] += 1
        if times[0] <= 2:
            raise TransientError("the store is away")
        return begin(run, driver, at_least)

    monkeypatch.setattr(StoredRun, "begin", away_twice)
    monkeypatch.setattr(supervise, "_STORE_PAUSE_S", 0.01)
    job = in_process(home, small_version, f"file://{tmp_path}/store")
    assert launch(job).attempts == 1
    assert caplog.text.count("the store is away; asked again for at most") == 2
    assert read_failures(job.paths) == []

    impatient = in_process(
        Home(tmp_path / "other"), small_version, f"file://{tmp_path}/second", tracking={"outage_s": 0.0}
    )
    times[0] = 0
    with pytest.raises(TransientError, match="the store is away"):
        launch(impatient)


def test_of_two_homes_with_one_store_the_older_ends_and_the_newer_is_not_disturbed(
    home: Home, small_version: DatasetVersion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older attempt fails of another cause, so only the log in the store tells of the newer attempt."""
    job = in_process(home, small_version, f"file://{tmp_path}/store")
    stored = stored_run(job)
    assert stored is not None
    beat = Heartbeat.beat

    def overtaken(heartbeat: Heartbeat, step: int) -> None:
        beat(heartbeat, step)
        if step == 5:
            stored.begin("another/1/a", at_least=1)
            raise TransientError("a worker died")

    monkeypatch.setattr(Heartbeat, "beat", overtaken)
    with pytest.raises(RivalDriverError, match="another/1/a"):
        launch(job)
    assert stored.state().driver == "another/1/a"
    assert len(read_attempts(job.paths)) == 1


def test_a_damaged_newest_entry_costs_a_checkpoint(
    home: Home, small_version: DatasetVersion, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = in_process(home, small_version, f"file://{tmp_path}/store")
    crashed(job, 9)
    store = open_store(f"file://{tmp_path}/store")
    newest = max(key for key in store.keys("runs") if "/log/" in key)
    file = tmp_path / "store" / newest
    file.write_bytes(file.read_bytes()[:-20])
    again = launch(job)
    assert f"{newest}: damaged" in caplog.text
    calm = in_process(Home(tmp_path / "calm"), small_version, f"file://{tmp_path}/other")
    assert outcome(job, again) == outcome(calm, launch(calm))
    assert [attempt.first_step for attempt in read_attempts(job.paths)] == [0, 6]  # not 8


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_slow_uploads_are_not_taken_for_a_hang(
    home: Home,
    small_version: DatasetVersion,
    storage: dict[str, str],
    calm: tuple[Any, ...],
    s3_server: S3Server,
) -> None:
    """The first checkpoint takes longer than one worker may wait for the others, but its files arrive one by one."""
    s3_server.delays[:] = [15.0, 15.0, 15.0]
    job = slow_job(home, small_version, storage=storage, failure={"collective_timeout_s": 25.0})
    trained = launch(job)
    assert s3_server.delays == []
    assert outcome(job, trained) == calm
    assert read_failures(job.paths) == []
    assert max(read_beats(job.paths), key=lambda beat: beat.rank == 0).moved > 0
