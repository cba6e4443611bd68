"""`evergreen verify` reads a run's objects in its store, and names a damaged one with a remedy."""

from pathlib import Path

import pytest
from crashes import crashed
from small_runs import prepared, tiny_settings

from tasks.train import keep_plan
from tasks.verify import verify
from tasks.verify.attempts import computed_twice, on_record
from tasks.verify.evidence import Evidence
from tasks.verify.stored import dataset, objects
from training.attempts.history import note
from training.attempts.job import TrainingJob
from training.data.sources.digits import Digits
from training.plan import identify
from training.ray_cluster import stored_datasets
from training.recipe import load
from training.storage.objects.base import open_store
from training.storage.paths import Home
from training.supervision.launch import launch, make_job


def job_in(home: Home, url: str | None) -> TrainingJob:
    """A training of the digits in this process, without its evaluation and registration."""
    _, ref = load("digits")
    options = tiny_settings(
        training={"epochs": 1},
        checkpoint={"every_steps": 1},
        storage={"url": url},
        data={"max_train_rows": 300},
    )
    plan = keep_plan(identify(home, ref, options, Digits().fetch(home.sources / "digits")))
    version = prepared(home, data={"max_train_rows": 300})
    return make_job(plan.run_key, plan.paths, ref, plan.settings, version)


def trained(home: Home, url: str | None) -> Evidence:
    job = job_in(home, url)
    launch(job)
    return Evidence(job.paths, home)


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def test_a_flipped_byte_in_the_store_is_found_and_named(home: Home, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    run = trained(home, url)
    assert objects(run).ok, objects(run).detail
    assert "the finished training, checkpoints of" in objects(run).detail
    keys = open_store(url).keys("runs")
    (weights,) = [key for key in keys if key.endswith("weights.safetensors")]
    flip(tmp_path / "store" / weights)
    (finding,) = [finding for finding in verify(run.paths, home) if finding.name == "objects in the store"]
    assert (finding.invariant, finding.ok) == ("I7", False)
    assert f"{url}/{weights}: not the bytes that were uploaded" in finding.detail
    assert "Restore the objects, or delete" in finding.detail
    flip(tmp_path / "store" / weights)
    (tmp_path / "store" / weights).rename(tmp_path / "away")
    assert f"{weights}: missing" in objects(run).detail
    (tmp_path / "away").rename(tmp_path / "store" / weights)
    assert objects(run).ok
    newest = max(key for key in keys if "/log/" in key)
    flip(tmp_path / "store" / newest)
    assert not objects(run).ok
    assert f"{url}/{newest}: damaged" in objects(run).detail


def test_a_changed_part_file_of_the_uploaded_dataset_is_found_and_named(home: Home, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    run, store = trained(home, url), open_store(url)
    assert dataset(run) == (True, f"the dataset is not in {url}: a training uploads it for workers on Ray")
    stored_datasets.publish(run.dataset, store)
    assert dataset(run) == (True, "sha256 of 2 files")
    part = next(key for key in store.keys("datasets") if key.endswith(".parquet"))
    flip(tmp_path / "store" / part)
    (finding,) = [finding for finding in verify(run.paths, home) if finding.name == "dataset in the store"]
    assert (finding.invariant, finding.ok) == ("I7", False)
    assert f"{url}/{part}: not the bytes that the manifest lists" in finding.detail
    assert f"Delete {url}/datasets/" in finding.detail
    (tmp_path / "store" / part).unlink()
    assert f"{url}/{part}: missing" in dataset(run).detail
    manifest = next(key for key in store.keys("datasets") if key.endswith("manifest.json"))
    flip(tmp_path / "store" / manifest)
    assert f"{url}/{manifest}: damaged" in dataset(run).detail
    (tmp_path / "store" / manifest).unlink()
    assert "the dataset is not in" in dataset(run).detail


@pytest.mark.extended
def test_a_training_that_another_machine_continued_or_downloaded_is_sound(home: Home, tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    crashed(job_in(home, url), crash_step=3)
    continued = trained(Home(tmp_path / "second"), url)
    (attempt,) = continued.attempts
    assert attempt.number == 2
    assert attempt.first_step > 0
    downloaded = trained(Home(tmp_path / "third"), url)
    assert downloaded.attempts == [attempt]
    for run in (continued, downloaded):
        assert on_record(run).ok, on_record(run).detail
        assert computed_twice(run).ok
    downloaded.paths.fence.unlink()
    assert on_record(downloaded) == (False, "attempt 2.1 began, but the fence is none")


def test_a_first_attempt_on_record_begins_at_the_first_step_with_a_store_too(
    home: Home, tmp_path: Path
) -> None:
    run = trained(home, f"file://{tmp_path}/store")
    (attempt,) = run.attempts
    run.paths.attempts.unlink()
    note(run.paths.attempts, attempt.model_copy(update={"first_step": 2, "reached": 2}))
    assert on_record(Evidence(run.paths, home)) == (False, "the first attempt on record began at step 2")


def test_a_run_without_a_store_has_no_objects(home: Home) -> None:
    run = trained(home, None)
    assert objects(run) == dataset(run) == (True, "the run uses no object store")
