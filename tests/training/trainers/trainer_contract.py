"""What callers rely on of every trainer. A test class inherits :class:`TrainerContract` and gives a job."""

import pickle
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from boosted_tables import outcome

from training.attempts.fence import Fence, SupersededError
from training.attempts.heartbeat import Heartbeat
from training.attempts.history import read_attempts
from training.attempts.job import TrainingJob
from training.attempts.metrics import AT_EPOCH_ENDS, AT_INTERVALS, SPEEDS, MetricsFile
from training.checkpoints.checkpoint_files import read_manifest, read_state
from training.checkpoints.parts import whole
from training.data.dataset import open_columns
from training.data.sample_order import checksum
from training.errors import StopRequestedError
from training.problems.objectives import objective_named
from training.settings.overrides import resolve
from training.storage.paths import Home
from training.supervision.launch import finished, launch
from training.trainers.base import inspection_of, trainer_named
from training.trainers.rows import training_rows


class Crash(BaseException):
    """Ends a training at once; a BaseException that no code of Evergreen catches by name."""


class Unpickled(BaseException):
    """A pickle was read; a BaseException, so that no library that tries a pickle goes on without it."""


def refuse_pickles(patch: pytest.MonkeyPatch) -> None:
    """Let each call through the module `pickle`, and of `torch.load`, raise :class:`Unpickled`.

    A training that resumes may read no pickle.

    `torch.load` with `weights_only=True` builds tensors, numbers and text alone, by an unpickler of its own.
    """
    torch_load = torch.load

    def refuse(*_: object, **__: object) -> None:
        raise Unpickled

    def load_weights_only(*arguments: Any, **options: Any) -> Any:
        return torch_load(*arguments, **options) if options.get("weights_only") is True else refuse()

    for name in ("load", "loads", "Unpickler"):
        patch.setattr(pickle, name, refuse)
    patch.setattr(torch, "load", load_weights_only)


class TrainerContract(ABC):
    """Tests of a trainer, by trainings in this process."""

    @abstractmethod
    def job(self, home: Home) -> TrainingJob:
        """A training of some 20 steps or more, on one worker."""

    def steps(self, job: TrainingJob) -> int:
        columns = open_columns(job.dataset, "train")
        rows = len(training_rows(columns, job.settings)[0])
        each = trainer_named(job.settings.trainer).steps_per_epoch(job.settings, rows, 1)
        return each * job.settings.epochs

    def one_step_epochs(self, job: TrainingJob) -> TrainingJob:
        """The job with one step in each of four epochs; boosting has one step, a round, in each epoch anyway."""
        if "global_batch_size" not in type(job.settings.training).model_fields:
            return job
        rows = len(training_rows(open_columns(job.dataset, "train"), job.settings)[0])
        own = {"training": {"global_batch_size": rows, "epochs": 4}, "checkpoint": {"every_steps": 1}}
        return job.model_copy(update={"settings": resolve(job.settings, own)})

    def at_half(self, job: TrainingJob, act: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
        """Call `act` at each heartbeat from half of the training on, until the test undoes its patches."""
        half, beat = self.steps(job) // 2, Heartbeat.beat

        def beat_and_act(heartbeat: Heartbeat, step: int) -> None:
            beat(heartbeat, step)
            if step >= half:
                act()

        monkeypatch.setattr(Heartbeat, "beat", beat_and_act)

    def test_a_training_finishes_once(self, home: Home) -> None:
        job = self.job(home)
        trained = launch(job)
        assert Path(trained.weights).name == trainer_named(job.settings.trainer).MODEL_FILE
        assert Path(trained.weights).is_file()
        assert (trained.steps, len(trained.history)) == (self.steps(job), job.settings.epochs)
        assert launch(job) == finished(job.paths, job.run_key)
        assert len(read_attempts(job.paths)) == 1

    def test_the_model_can_be_read_from_a_checkpoint(self, home: Home) -> None:
        """From that of the selected epoch, or from a later one that holds the model, too."""
        job = self.job(home)
        trained = launch(job)
        kept = {int(checkpoint.name[5:]): checkpoint for checkpoint in job.paths.checkpoints.glob("step-*")}
        checkpoint = kept.get(trained.selected().step, kept[max(kept)])
        state = whole(read_state(checkpoint, read_manifest(checkpoint)))
        read = inspection_of(job.settings.trainer).model_digest(state, trained.selected_epoch)
        assert read == trained.weights_digest

    def test_every_epoch_uses_each_row_once(self, home: Home) -> None:
        job = self.job(home)
        rows = training_rows(open_columns(job.dataset, "train"), job.settings)[0]
        used = {(epoch.rows, epoch.checksum) for epoch in launch(job).history}
        assert used == {(len(rows), checksum(rows))}

    def test_every_step_gives_a_heartbeat_and_no_point_is_written_twice(
        self, home: Home, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job, steps = self.job(home), []
        beat = Heartbeat.beat
        monkeypatch.setattr(Heartbeat, "beat", lambda self, step: (steps.append(step), beat(self, step)))
        launch(job)
        assert set(range(1, self.steps(job) + 1)) <= set(steps)
        points = [
            (point.step, name) for point in MetricsFile(job.paths.metrics).read() for name in point.values
        ]
        assert len(points) == len(set(points))

    def test_the_metric_points_that_verify_expects_are_written(self, home: Home) -> None:
        job = self.job(home)
        launch(job)
        names = {name for point in MetricsFile(job.paths.metrics).read() for name in point.values}
        metric = objective_named(job.dataset.problem).metric
        assert {name.format(metric=metric) for name in (*AT_INTERVALS, *AT_EPOCH_ENDS)} <= names
        assert len(names & SPEEDS) == 1

    def test_a_training_that_crashed_keeps_the_trainer_s_promise(
        self, home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def crash() -> None:
            raise Crash

        calm = self.job(Home(tmp_path / "calm"))
        expected = outcome(calm, launch(calm))
        job = self.job(home)
        with monkeypatch.context() as patch:
            self.at_half(job, crash, patch)
            with pytest.raises(Crash):
                launch(job)
        assert finished(job.paths, job.run_key) is None
        with monkeypatch.context() as patch:
            refuse_pickles(patch)
            result = outcome(job, launch(job))
        assert len(read_attempts(job.paths)) == 2
        if trainer_named(job.settings.trainer).promise(job.settings).same_bits_after_kill:
            assert result == expected

    def test_a_request_to_stop_ends_the_training_and_the_next_start_goes_on(
        self, home: Home, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job = self.job(home)

        def stop() -> None:
            job.paths.stop.touch()
            time.sleep(0.25)  # workers look every 0.2 s

        with monkeypatch.context() as patch:
            self.at_half(job, stop, patch)
            with pytest.raises(StopRequestedError, match="the same command resumes"):
                launch(job)
        launch(job)
        first, second = read_attempts(job.paths)
        assert (first.first_step, second.first_step > 0) == (0, True)

    def test_a_request_to_stop_is_seen_in_epochs_of_one_step(
        self, home: Home, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job = self.one_step_epochs(self.job(home))

        def stop() -> None:
            job.paths.stop.touch()

        with monkeypatch.context() as patch:
            patch.setattr("training.trainers.requests._LOOK_S", 0.0)
            self.at_half(job, stop, patch)
            with pytest.raises(StopRequestedError, match="the same command resumes"):
                launch(job)
        trained = launch(job)
        first, second = read_attempts(job.paths)
        assert (first.first_step, trained.steps) == (0, self.steps(job))
        assert 0 < second.first_step < trained.steps

    def test_an_attempt_that_another_driver_superseded_writes_no_model(
        self, home: Home, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job = self.job(home)
        begun: list[Fence] = []

        def supersede() -> None:
            if not begun:
                begun.append(Fence.begin(job.paths, driver="another"))

        self.at_half(job, supersede, monkeypatch)
        with pytest.raises(SupersededError):
            launch(job)
        assert finished(job.paths, job.run_key) is None
