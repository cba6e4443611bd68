"""Signals to processes of a run: ranks, controller, Ray's daemons, the flow, all at once, again during recovery."""

import shutil
import signal
import time

import psutil

from benchmarks.chaos import processes
from benchmarks.chaos.faults import IN_PROCESS, ON_RAY, Fault
from benchmarks.chaos.processes import send
from benchmarks.chaos.trial import Trial
from training.errors import EXIT_INTERRUPTED, EXIT_TERMINATED

_CONTROLLER = "ray::TrainController"
_DATA_WORKERS = ("ray::Map", "ray::Read", "ray::FlatMap", "ray::Write")
_KILLS, _LEFT_OUT = 5, 5
_TOLD = {
    signal.SIGKILL: (-signal.SIGKILL,),
    signal.SIGTERM: (EXIT_TERMINATED, -signal.SIGTERM),
    signal.SIGINT: (EXIT_INTERRUPTED, -signal.SIGINT),
}


def kill_rank(trial: Trial) -> None:
    """SIGKILL rank 0 or rank 1, in turn."""
    _signal_rank(trial, trial.pick((0, 1)), signal.SIGKILL)


def kill_ranks(trial: Trial) -> None:
    """SIGKILL a rank five times in one training, each time in a later attempt; ranks 0 and 1 in turn."""
    trial.settings["failure.max_failures"] = str(_KILLS)
    trial.start()
    apart = (trial.kind.workload.steps - 2) // _KILLS
    attempt = 0
    for number in range(_KILLS):
        # The last steps of each part are left out, so that the next kill does not fall into the same attempt.
        step = number * apart + trial.random.randint(1, apart - _LEFT_OUT)
        attempt = _wait_for_attempt(trial, number % 2, step, attempt)
        _signal_worker(trial, number % 2, step, signal.SIGKILL)


def _wait_for_attempt(trial: Trial, rank: int, step: int, before: int) -> int:
    """Wait until an attempt later than `before` has reached a step; returns the attempt of this rank's worker."""

    def attempt() -> int:
        return next((beat.attempt for beat in trial.beats() if beat.rank == rank), 0)

    trial.wait_for(lambda: trial.step() >= step and attempt() > before)
    return max(attempt(), before)


def stop_rank(trial: Trial) -> None:
    """SIGSTOP a rank: the process exists but does nothing."""
    _signal_rank(trial, trial.pick((1, 0)), signal.SIGSTOP)


def _signal_rank(trial: Trial, rank: int, signum: signal.Signals) -> None:
    trial.start()
    _signal_worker(trial, rank, trial.wait_for_some_step(), signum)


def _signal_worker(trial: Trial, rank: int, step: int, signum: signal.Signals) -> None:
    beat = next((heartbeat for heartbeat in trial.beats() if heartbeat.rank == rank), None)
    injected = beat is not None and not trial.run.ended and send(beat.pid, signum)
    trial.hit(f"{signum.name} to rank {rank} at step {step}", injected)


def kill_controller(trial: Trial) -> None:
    """SIGKILL Ray Train's controller at a step, or Ray Data's workers while they prepare the data."""
    trial.pick((_kill_controller, _kill_data_worker))(trial)


def _kill_controller(trial: Trial) -> None:
    trial.start()
    step = trial.wait_for_some_step()
    _kill_titled(trial, (_CONTROLLER,), f"SIGKILL to the Train controller at step {step}")


def _kill_data_worker(trial: Trial) -> None:
    for folder in (trial.home.datasets, trial.home.raw):
        shutil.rmtree(folder, ignore_errors=True)
    trial.start()
    trial.wait_for(lambda: bool(_titled(trial, _DATA_WORKERS)))
    _kill_titled(trial, _DATA_WORKERS, "SIGKILL to a worker of Ray Data")


def _titled(trial: Trial, titles: tuple[str, ...]) -> list[psutil.Process]:
    ray_processes = trial.on_ray()
    return [process for title in titles for process in processes.named(ray_processes, title)]


def _kill_titled(trial: Trial, titles: tuple[str, ...], what: str) -> None:
    victims = _titled(trial, titles)
    injected = (
        bool(victims) and not trial.run.ended and send(trial.random.choice(victims).pid, signal.SIGKILL)
    )
    trial.hit(what, injected)


def kill_raylet(trial: Trial) -> None:
    """SIGKILL the raylet of the run's own Ray: all workers of the node end with it."""
    _kill_daemon(trial, "raylet/raylet")


def kill_gcs(trial: Trial) -> None:
    """SIGKILL the GCS of the run's own Ray: training itself does not notice for a while."""
    _kill_daemon(trial, "gcs/gcs_server")


def _kill_daemon(trial: Trial, program: str) -> None:
    trial.start()
    step = trial.wait_for_some_step()
    victims = processes.named(trial.on_ray(), program)
    injected = bool(victims) and not trial.run.ended and send(victims[0].pid, signal.SIGKILL)
    trial.hit(f"SIGKILL to {program.rpartition('/')[2]} at step {step}", injected)


def signal_flow(trial: Trial) -> None:
    """SIGKILL, SIGTERM or SIGINT the flow's process; the exit status must tell which signal it was.

    The first trial of each signal hits a step, so that few trials, too, show how a training goes on.
    """
    signals = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
    signum = trial.pick(signals)
    trial.start()
    moment = (
        f"at step {trial.wait_for_some_step()}"
        if trial.number <= len(signals)
        else trial.wait_for_some_moment()
    )
    trial.hit(f"{signum.name} to the flow {moment}", not trial.run.ended and send(trial.run.pid, signum))
    trial.expect(*_TOLD[signum])


def kill_flow_after_checkpoints(trial: Trial, checkpoints: int) -> None:
    """Start the command, SIGKILL its process at a random step after so many checkpoints, and wait for its end."""
    trial.start()
    step = trial.wait_for_some_step(checkpoints * trial.kind.workload.steps_per_checkpoint + 1)
    trial.hit(
        f"SIGKILL to the flow at step {step}", not trial.run.ended and send(trial.run.pid, signal.SIGKILL)
    )
    trial.wait()


def kill_everything(trial: Trial) -> None:
    """SIGKILL all processes of the run at the same moment."""
    trial.start()
    moment = trial.wait_for_some_moment()
    alive = not trial.run.ended
    victims = trial.processes()
    for victim in victims:
        send(victim.pid, signal.SIGKILL)
    trial.hit(f"SIGKILL to {len(victims)} processes {moment}", alive)


def kill_again(trial: Trial) -> None:
    """SIGKILL the flow, and again while the next start recovers: two or three kills in all."""
    for _ in range(trial.pick((2, 3))):
        trial.start()
        moment = trial.wait_for_some_moment()
        trial.hit(
            f"SIGKILL to the flow {moment}", not trial.run.ended and send(trial.run.pid, signal.SIGKILL)
        )
        if trial.wait() == 0:
            return
    trial.start()


def signal_something(trial: Trial) -> None:
    """SIGKILL or SIGTERM a process of the run; signal, process and moment are random."""
    signum = trial.random.choice((signal.SIGKILL, signal.SIGTERM))
    victim = trial.random.choice(("flow", "rank 0", "rank 1", "controller"))
    trial.start()
    moment = trial.wait_for_some_moment()
    if victim != "flow" and not trial.beats():  # there are no workers now: wait for the next ones
        trial.wait_for(lambda: bool(trial.beats()))
        time.sleep(trial.random.random())
    pid = _pid_of(trial, victim)
    trial.hit(
        f"{signum.name} to {victim} {moment}", pid is not None and not trial.run.ended and send(pid, signum)
    )


def _pid_of(trial: Trial, victim: str) -> int | None:
    if victim == "flow":
        return trial.run.pid
    if victim == "controller":
        return next((process.pid for process in _titled(trial, (_CONTROLLER,))), None)
    return next((beat.pid for beat in trial.beats() if f"rank {beat.rank}" == victim), None)


FAULTS = (
    Fault("F1", "SIGKILL of a rank", kill_rank),
    Fault("F23", "SIGKILL of a rank, five times in one training", kill_ranks),
    Fault("F2", "SIGSTOP of a rank", stop_rank),
    Fault("F3", "SIGKILL of the Train controller, of a Ray Data worker", kill_controller),
    Fault("F4", "SIGKILL of the raylet", kill_raylet, own_services=True),
    Fault("F5", "SIGKILL of the GCS", kill_gcs, own_services=True),
    Fault("F6", "SIGKILL, SIGTERM, SIGINT of the flow", signal_flow, (ON_RAY, IN_PROCESS)),
    Fault("F9", "SIGKILL of everything at once", kill_everything, own_services=True),
    Fault(
        "F21",
        "SIGKILL again during recovery, two and three deep",
        kill_again,
        (IN_PROCESS, IN_PROCESS, ON_RAY),
    ),
    Fault("random", "SIGKILL or SIGTERM of flow, rank or controller, all drawn", signal_something),
)
