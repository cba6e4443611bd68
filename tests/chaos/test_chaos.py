"""A short, fixed part of the fault matrix: real commands are killed and damaged, and `evergreen verify` must pass.

`make chaos` runs the whole matrix.
"""

import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.chaos.__main__ import run_trial
from benchmarks.chaos.bench import Bench, bench
from benchmarks.chaos.faults import IN_PROCESS, Fault, all_faults
from benchmarks.chaos.processes import send
from benchmarks.chaos.trial import Trial

SEED = 1
FAULTS = {fault.id: fault for fault in all_faults()}


@pytest.fixture(scope="module")
def chaos_bench() -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="evx") as folder, bench(Path(folder)) as made:
        yield made


@pytest.mark.extended
@pytest.mark.parametrize(
    ("fault", "number", "done"),
    [
        pytest.param(FAULTS["F10"], 1, "at the rename to", id="killed at a rename"),
        pytest.param(
            FAULTS["F13"], 2, "state flipped", id="killed, then a bit flipped", marks=pytest.mark.slow
        ),
    ],
)
def test_the_same_command_ends_with_the_same_model(
    chaos_bench: Bench, fault: Fault, number: int, done: str
) -> None:
    if reason := fault.unavailable():
        pytest.skip(reason)
    outcome = run_trial(chaos_bench, fault, number, SEED)
    assert outcome.broken == ()
    assert outcome.injected
    assert done in outcome.moment
    assert outcome.statuses == (-signal.SIGKILL, 0)
    assert outcome.weights_identical is True
    assert outcome.one_version is True
    assert (outcome.metric_gaps, outcome.metric_doubles) == (False, False)
    assert not list(chaos_bench.folder.glob(f"{fault.id.lower()}-*"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", [pytest.param(FAULTS[name], id=FAULTS[name].what) for name in ("F4", "F5", "F6", "F7")]
)
def test_servers_that_die_change_nothing_but_the_time(chaos_bench: Bench, fault: Fault) -> None:
    if reason := fault.unavailable():
        pytest.skip(reason)
    outcome = run_trial(chaos_bench, fault, 1, SEED)
    assert outcome.broken == ()
    assert outcome.injected
    assert (outcome.weights_identical, outcome.one_version) == (True, True)
    assert (outcome.metric_gaps, outcome.metric_doubles) == (False, False)


def kill_ten_times(trial: Trial) -> None:
    """SIGKILL the flow ten times during one training, every six steps."""
    for step in range(4, 64, 6):
        trial.start()
        trial.wait_for_step(step)
        trial.hit(f"SIGKILL at step {step}", not trial.run.ended and send(trial.run.pid, signal.SIGKILL))
        trial.wait()
    trial.start()


@pytest.mark.slow
def test_ten_kills_in_a_row_end_in_the_same_model(chaos_bench: Bench) -> None:
    outcome = run_trial(
        chaos_bench, Fault("ten", "SIGKILL ten times", kill_ten_times, (IN_PROCESS,)), 1, SEED
    )
    assert outcome.statuses == (-signal.SIGKILL,) * 10 + (0,)
    assert outcome.broken == ()
    assert (outcome.weights_identical, outcome.one_version) == (True, True)
    assert (outcome.metric_gaps, outcome.metric_doubles) == (False, False)
