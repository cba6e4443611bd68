"""Replay check: would an interrupted training end with the same bits? Checked once per run, by repeating a few rounds.

The rounds after an attempt's first saved block are computed a second time, by a model loaded from that checkpoint, as
a resumed attempt would compute them. The bytes of both models, their losses and their metrics are compared.

All workers take part, as rounds are collective. If an attempt dies during the replay, the next attempt replays again;
if that attempt dies in the replay too, the run continues without the check.
"""

import logging
import time
from dataclasses import dataclass, field
from typing import Generic

import torch  # noqa: TID253 - imported by processes that train

from training.attempts.fence import Fence
from training.attempts.heartbeat import Heartbeat
from training.attempts.job import TrainingJob
from training.checkpoints.checkpoint_log import CheckpointLog
from training.errors import EvergreenError
from training.records import ReplayOutcome
from training.storage.record_files import write_record
from training.trainers.accounting import Clock
from training.trainers.boosting.results import gathered
from training.trainers.boosting.rounds import Boosting, Measures, Model, Round
from training.trainers.long_work import LongWork
from training.trainers.ranks import Ranks
from training.trainers.replay_outcome import begun, different, equal, is_decided, read_outcome, unchecked

log = logging.getLogger("evergreen.replay")

_SECONDS = 0.3  # approximate duration of the repeated rounds, which sets their number (at least one)
_REMEDY = (
    "{} does not compute the same bits twice here: compare the machines of the workers, or set "
    "scaling.threads_per_worker=1."
)


@dataclass
class Replay(Generic[Model]):
    """The replay check of one attempt."""

    job: TrainingJob
    ranks: Ranks
    long_work: LongWork
    boosting: Boosting[Model]
    checkpoints: CheckpointLog
    fence: Fence
    heartbeat: Heartbeat
    clock: Clock
    _wanted: bool = False
    _entered_at: tuple[int, float] = (0, 0.0)  # round and time
    _start: int | None = None
    _count: int = field(default=0)

    def enter(self, round_number: int) -> None:
        """Called when training starts at `round_number`; the first rank decides for all whether to check the run."""
        on = self.job.settings.checkpoint.replay
        wanted = self.ranks.is_first and on and not is_decided(read_outcome(self.job.paths))
        self._wanted = bool(self.ranks.add_up(float(wanted))[0])
        self._entered_at = round_number, time.perf_counter()

    def needs_checkpoint(self, end: int) -> bool:
        """Whether the check needs a checkpoint at round `end`, the end of a block of this attempt."""
        return self._wanted and self._start is None and end < self.job.settings.training.total_epochs

    def saved(self, rounds: int, end: int) -> None:
        """Called on all ranks when the model of `rounds` rounds is being saved: choose the rounds to repeat.

        These are the first ones of the next block, which begins at round `rounds` and ends at round `end`.
        """
        if not self._wanted or self._start is not None or end <= rounds:
            return
        entered, since = self._entered_at
        mean_s = (time.perf_counter() - since) / max(1, rounds - entered)
        slowest_s = max(map(float, self.ranks.gather(torch.tensor([mean_s], device=self.ranks.device))))
        self._start, self._count = rounds, max(1, min(end - rounds, int(_SECONDS / slowest_s)))
        self.checkpoints.pinned = rounds

    @property
    def is_repeating(self) -> bool:
        """Whether rounds are being computed that will be repeated: the next one may be the last of these."""
        return self._start is not None

    def watch(self, model: Model, done: int, result: Round, ended: bool) -> None:
        """Called on all ranks after the exchange of results; after the last round to repeat, repeat all and compare.

        `result` is that of the newest round. While :attr:`is_repeating`, the ranks exchange after each round.
        `ended`: training ends after this round, perhaps before the last round that was to be repeated.
        """
        if self._start is None or (done < self._start + self._count and not ended):
            return
        self._count = min(self._count, done - self._start)
        with self.clock.time("replay check"), self.heartbeat.kept_beating(done):
            self._check(self._start, self.boosting.content(model), result)
        self.checkpoints.pinned = self._start = None
        self._wanted = False

    def outcome(self) -> ReplayOutcome:
        """The outcome of the run's replay check, or why there was no replay."""
        on = self.job.settings.checkpoint.replay
        reason = "no round followed a checkpoint within one attempt" if on else "checkpoint.replay is off"
        return read_outcome(self.job.paths) or unchecked(reason)

    def _check(self, start: int, content: bytes, result: Round) -> None:
        self.long_work.on_first(self.checkpoints.wait)
        if self.ranks.is_first:
            self._write(begun(read_outcome(self.job.paths)))
        self.ranks.barrier()
        state = self._read(start)
        if state is None:
            outcome = unchecked(f"the checkpoint at step {start} could not be read back")
        else:
            outcome = self._compared(start, state, content, result)
        if self.ranks.is_first:
            self._write(outcome)
            log.log(logging.INFO if outcome.reproducible else logging.WARNING, "%s", outcome.reason)

    def _write(self, outcome: ReplayOutcome) -> None:
        self.fence.check()
        write_record(self.job.paths.replay, outcome, self.job.paths.root.name)

    def _read(self, start: int) -> bytes | None:
        """The model in the checkpoint, or None on all ranks if any rank can't read it."""
        state = None
        try:
            loaded = self.long_work.on_all(lambda: self.checkpoints.load_at(start))
            state = loaded["booster"].numpy().tobytes()
        except (EvergreenError, OSError) as error:  # all ranks skip the check, also without a store's answer
            log.warning("%s The replay check of this run is skipped.", error)
        return None if self.ranks.add_up(float(state is None))[0] else state

    def _compared(self, start: int, state: bytes, content: bytes, result: Round) -> ReplayOutcome:
        model = self.boosting.model(state, start)
        measures: Measures = ()
        for number in range(start, start + self._count):
            self.boosting.advance(model, number)
            measures = self.boosting.measure(model, number)
        again = self.boosting.combined(gathered(self.ranks, measures))
        differing = ["the trees"] if self.boosting.content(model) != content else []
        differing += ["the loss or the metric"] if again != result else []
        if not self.ranks.add_up(float(bool(differing)))[0]:
            return equal(start, self._count)
        # Names what differs on the first rank, which writes the outcome; other ranks may differ in other things.
        return different(
            start,
            self._count,
            start + self._count if differing else None,
            differing,
            (),
            _REMEDY.format(self.boosting.library),
        )
