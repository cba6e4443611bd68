"""`evergreen gc` in an object store that several homes share: what a live run of any home needs stays."""

import os
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from small_runs import prepared, tiny_settings

from tasks.cleanup.retention import collect
from tasks.cleanup.stored_objects import Unneeded, read_store
from tasks.train import keep_plan
from training.attempts.fence import Fence, SupersededError
from training.attempts.job import TrainingJob
from training.checkpoints.stored_run import RunState, StoredCheckpoint, StoredRun
from training.data.sources.digits import Digits
from training.errors import TransientError
from training.plan import identify
from training.recipe import load
from training.storage.objects.base import ObjectStore, open_store
from training.storage.paths import Home
from training.supervision.launch import launch, make_job

DAY_S = 86400.0
NAME = "0123456789abcdef"
PREFIX = f"runs/digits/{NAME}"
DATASET = "datasets/digits/aaaaaaaaaaaaaaaa"


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(f"file://{tmp_path}/store")


def make_old(folder: Path, days: float) -> None:
    then = time.time() - days * DAY_S
    for file in folder.rglob("*"):
        os.utime(file, (then, then))


def found(store: ObjectStore, is_kept: bool | None = None) -> list[Unneeded]:
    kept = {} if is_kept is None else {NAME: is_kept}
    content = read_store(store.url, "digits")
    assert content is not None
    whole = content.whole_runs(kept)
    return [*whole.values(), *content.parts(whole, set())]


def kinds(store: ObjectStore, is_kept: bool | None = None) -> list[str]:
    return [unneeded.what for unneeded in found(store, is_kept)]


def run_with_checkpoint(store: ObjectStore, folder: Path, finished: bool) -> StoredRun:
    """A run of another home in its second attempt; the first was killed during an upload. Its dataset is stored."""
    (folder / "file").write_bytes(b"content")
    store.put_file(f"{DATASET}/manifest.json", folder / "file")
    run = StoredRun(store, PREFIX, dataset=DATASET)
    run.begin("there/1/a", at_least=1)
    run.fence = Fence(Path("unused"), 2, 1, "there/1/b")
    StoredRun(store, PREFIX, Fence(Path("unused"), 1, 1, "there/1/a")).upload({"killed": folder / "file"})
    entry = run.state().model_copy(update={"attempt": 2, "driver": "there/1/b", "number": 1})
    assert run._try_append(run.state(), entry)
    run.enter()
    files = run.upload({"step/state.pt": folder / "file"})
    made = StoredCheckpoint(step=1, score=None, files=files)
    run.commit(lambda state: state.model_copy(update={"checkpoints": (made,)}))
    run.upload({"step/unfinished": folder / "file"})  # not committed yet
    if finished:
        model = run.upload({"model/weights": folder / "file"})
        run.commit(lambda state: state.model_copy(update={"model": model}))
    return run


def test_a_run_of_another_home_loses_only_what_no_attempt_can_commit(
    store: ObjectStore, tmp_path: Path
) -> None:
    run_with_checkpoint(store, tmp_path, finished=False)
    make_old(tmp_path / "store", 29)
    (left,) = found(store)
    assert (left.what, [stored_object.key.rpartition("/")[2] for stored_object in left.objects]) == (
        "stored uploads",
        ["killed"],
    )
    left.delete()
    assert found(store) == []
    assert {key.rpartition("/")[2] for key in store.keys(f"{PREFIX}/files")} == {"state.pt", "unfinished"}
    assert store.keys(DATASET)


def test_objects_that_evergreen_did_not_write_stay(store: ObjectStore, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    theirs = ["datasets/digits/train/a.png", "datasets/digits/labels.csv", "runs/digits/exp1/events"]
    for key in theirs:
        store.put_file(key, tmp_path / "file")
    make_old(tmp_path / "store", 365)
    assert found(store) == []
    assert sorted(store.keys("")) == sorted(theirs)


def test_a_run_without_change_for_30_days_is_abandoned_with_its_dataset(
    store: ObjectStore, tmp_path: Path
) -> None:
    run_with_checkpoint(store, tmp_path, finished=False)
    make_old(tmp_path / "store", 31)
    assert kinds(store, is_kept=True) == ["stored uploads", "stored dataset"]
    abandoned, dataset = found(store)
    assert (abandoned.what, abandoned.why) == ("stored run", "not finished, no change for 31 days")
    abandoned.delete()
    dataset.delete()
    assert store.keys("") == []


def test_a_run_that_another_home_may_continue_stays_although_this_home_removes_its_own(
    store: ObjectStore, tmp_path: Path
) -> None:
    run_with_checkpoint(store, tmp_path, finished=False)
    make_old(tmp_path / "store", 2)
    assert kinds(store, is_kept=False) == ["stored uploads"]
    make_old(tmp_path / "store", 31)
    assert "stored run" in kinds(store, is_kept=False)


def test_a_run_that_began_again_after_the_listing_stays(
    store: ObjectStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_with_checkpoint(store, tmp_path, finished=False)
    make_old(tmp_path / "store", 31)
    abandoned, _ = found(store)
    StoredRun(store, PREFIX).begin("there/2/a", at_least=1)
    abandoned.delete()
    assert "in use again, so the run stays" in caplog.text
    state = StoredRun(store, PREFIX).state()
    assert (state.attempt, state.driver, len(state.checkpoints)) == (3, "there/2/a", 1)


def test_a_worker_that_still_lives_commits_nothing_to_a_removed_run(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its run is being deleted: the log, which says that the worker was superseded, goes last."""
    run = run_with_checkpoint(store, tmp_path, finished=False)
    make_old(tmp_path / "store", 31)
    abandoned, _ = found(store)
    refused, delete = [], type(store).delete

    def looking(self: ObjectStore, keys: Iterable[str]) -> None:
        with pytest.raises(SupersededError):
            run.commit(lambda state: state)
        refused.append(True)
        delete(self, keys)  # type: ignore[arg-type]

    monkeypatch.setattr(type(store), "delete", looking)
    abandoned.delete()
    assert refused == [True, True]
    with pytest.raises(SupersededError):
        run.commit(lambda state: state)
    assert store.keys(PREFIX) == []


def test_a_finished_training_of_another_home_stays_and_its_checkpoints_go(
    store: ObjectStore, tmp_path: Path
) -> None:
    run = run_with_checkpoint(store, tmp_path, finished=True)
    assert kinds(store) == ["stored uploads"]
    make_old(tmp_path / "store", 8)
    _, checkpoints, dataset = found(store)
    assert (checkpoints.what, dataset.what) == ("stored checkpoints", "stored dataset")
    checkpoints.delete()
    state = StoredRun(store, PREFIX).state()
    assert (state.checkpoints, len(state.model)) == ((), 1)
    assert run.damage(state.model) == []
    assert not any(key.endswith("state.pt") for key in store.keys(PREFIX))
    make_old(tmp_path / "store", 400)
    assert "stored run" not in kinds(store)
    assert "stored run" in kinds(store, is_kept=False)


def test_a_run_that_does_not_say_what_it_learns_keeps_all_datasets(
    store: ObjectStore, tmp_path: Path
) -> None:
    """Runs of the version before recorded no dataset."""
    run_with_checkpoint(store, tmp_path, finished=True)
    make_old(tmp_path / "store", 8)
    StoredRun(store, "runs/digits/fedcba9876543210").begin("there/1/c", at_least=1)
    assert "stored dataset" not in kinds(store)


def test_a_damaged_log_keeps_its_run(
    store: ObjectStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run_with_checkpoint(store, tmp_path, finished=False)
    newest = tmp_path / "store" / store.keys(f"{PREFIX}/log")[-1]
    newest.write_bytes(newest.read_bytes()[:-9])
    make_old(tmp_path / "store", 90)
    assert kinds(store, is_kept=False) == ["stored dataset"]
    assert "damaged" in caplog.text


def test_stored_datasets_and_a_damaged_run_stay_while_its_dataset_is_not_known(
    store: ObjectStore, tmp_path: Path, home: Home
) -> None:
    """The plan of a run of this home is damaged, so nothing of the run is removed, nor any dataset."""
    run_with_checkpoint(store, tmp_path, finished=True)
    make_old(tmp_path / "store", 90)
    assert kinds(store, is_kept=True) == ["stored uploads", "stored checkpoints", "stored dataset"]
    job = job_in(home, store.url)
    for name in (job.paths.root.name, NAME):
        file = home.run("digits", name).ingredients
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(job.paths.ingredients.read_text() if name != NAME else "{")
    removals = collect(home, keep=1).removals
    assert not [removal for removal in removals if removal.kind.startswith("stored")]


def job_in(home: Home, url: str) -> TrainingJob:
    _, ref = load("digits")
    few = {"max_train_rows": 300}
    options = tiny_settings(training={"epochs": 2}, storage={"url": url}, data=few)
    plan = keep_plan(identify(home, ref, options, Digits().fetch(home.sources / "digits")))
    return make_job(plan.run_key, plan.paths, ref, plan.settings, prepared(home, data=few))


def test_gc_cleans_the_stores_of_its_runs_and_a_dry_run_changes_nothing(
    home: Home, store: ObjectStore, tmp_path: Path
) -> None:
    job = job_in(home, store.url)
    digest = launch(job).weights_digest
    make_old(tmp_path / "store", 8)
    before = store.listing("")
    planned = collect(home, keep=1, dry_run=True)
    assert [removal.kind for removal in planned.removals if removal.kind.startswith("stored")] == [
        "stored checkpoints"
    ]
    assert store.listing("") == before
    assert collect(home, keep=1) == planned
    assert not any(removal.kind.startswith("stored") for removal in collect(home, keep=1).removals)
    assert StoredRun(store, f"runs/digits/{job.paths.root.name}").state() != RunState()
    other = job_in(Home(tmp_path / "other"), store.url)
    assert launch(other).weights_digest == digest  # from the store


@pytest.fixture
def unneeded_here(home: Home, store: ObjectStore) -> TrainingJob:
    """A run that this home does not need any more, because nothing of it changed for a month."""
    job = job_in(home, store.url)
    launch(job)
    make_old(home.root, 31)
    return job


def removed(home: Home, dry_run: bool = False) -> list[str]:
    """Kinds of the removals that concern runs, in their order."""
    removals = collect(home, keep=1, dry_run=dry_run).removals
    return [removal.kind for removal in removals if removal.kind in ("run", "stored run")]


def test_a_run_s_folder_goes_together_with_the_stored_run(
    home: Home, store: ObjectStore, tmp_path: Path, unneeded_here: TrainingJob
) -> None:
    """A home that forgot the run would leave it in the store for ever."""
    assert removed(home) == []
    assert unneeded_here.paths.ingredients.is_file()
    assert home.dataset("digits", unneeded_here.dataset.fingerprint).is_dir()
    make_old(tmp_path / "store", 2)
    assert removed(home, dry_run=True) == ["stored run", "run"]
    assert removed(home) == ["stored run", "run"]
    assert store.keys("runs") == []
    assert not unneeded_here.paths.root.exists()


def test_a_run_that_the_store_does_not_have_goes_at_once(
    home: Home, store: ObjectStore, unneeded_here: TrainingJob
) -> None:
    store.delete(store.keys("runs"))
    assert removed(home) == ["run"]
    assert not unneeded_here.paths.root.exists()


@pytest.mark.extended
@pytest.mark.parametrize("method", ["listing", "delete"])
def test_a_run_s_folder_stays_while_its_store_is_away(
    home: Home,
    store: ObjectStore,
    tmp_path: Path,
    unneeded_here: TrainingJob,
    monkeypatch: pytest.MonkeyPatch,
    method: str,
) -> None:
    make_old(tmp_path / "store", 2)

    def away(*_: object) -> None:
        raise TransientError("the store does not answer.")

    with monkeypatch.context() as patch:
        patch.setattr(type(store), method, away)
        assert removed(home) == []
    assert unneeded_here.paths.ingredients.is_file()
    make_old(tmp_path / "store", 31)
    assert removed(home) == ["stored run", "run"]
    assert store.keys("runs") == []


def test_a_dataset_that_a_training_begins_to_use_after_the_listing_stays(
    store: ObjectStore, tmp_path: Path
) -> None:
    run_with_checkpoint(store, tmp_path, finished=True)
    make_old(tmp_path / "store", 90)
    for again, left in ((True, [f"{DATASET}/manifest.json"]), (False, [])):
        (dataset,) = [
            unneeded for unneeded in found(store, is_kept=True) if unneeded.what == "stored dataset"
        ]
        if again:
            store.put_file(f"{DATASET}/manifest.json", tmp_path / "file")
        dataset.delete()
        assert store.keys(DATASET) == left
        make_old(tmp_path / "store", 90)
