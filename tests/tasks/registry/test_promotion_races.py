"""Candidates that register at the same time: each is compared with the champion that it replaces."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import Empty, Queue

import pytest
from candidates import Candidate, World
from prefect.states import Failed

from tasks.register import register
from tasks.registry.aliases import ChampionMovedError, alias_of, champion_of
from training.errors import TransientError


@pytest.mark.slow
def test_of_two_concurrent_registrations_one_is_compared_with_the_other(world: World) -> None:
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(outcome, world.candidates))
    check_one_won(world, outcomes)


@pytest.mark.slow
def test_of_two_concurrent_processes_one_is_compared_with_the_other(world: World, tmp_path: Path) -> None:
    """One process pauses just before it moves the alias: the other must not move the alias in the meantime."""
    for candidate in world.candidates:
        candidate.register(floor=1.0)  # both then have a version, so that they reach the alias quickly
    said: Said = Queue()
    with ExitStack() as ended:
        programs = [
            ended.enter_context(registering(candidate, tmp_path / str(number), number, said))
            for number, candidate in enumerate(world.candidates)
        ]
        assert {said.get(timeout=120), said.get(timeout=120)} == {(0, "ready"), (1, "ready")}
        began = time.monotonic()
        for program in programs:
            tell(program, "go")
        first, line = said.get(timeout=120)
        assert line == "at the alias"
        with pytest.raises(Empty):
            said.get(timeout=1 + time.monotonic() - began)
        tell(programs[first], "move it")
        assert said.get(timeout=120) == (first, "champion")
        assert said.get(timeout=120) == (1 - first, "moved")
        assert [program.wait(60) for program in programs] == [0, 0]
    check_one_won(world, ["champion", "moved"] if first == 0 else ["moved", "champion"])


def outcome(candidate: Candidate) -> str:
    try:
        return candidate.register().alias
    except ChampionMovedError:
        return "moved"


def check_one_won(world: World, outcomes: list[str]) -> None:
    assert sorted(outcomes) == ["champion", "moved"]
    loser = world.candidates[outcomes.index("moved")]
    winner = champion_of(world.client, world.model)
    again = loser.compared_again()
    assert again.evaluation.champion_version == winner != "2"
    release = again.register()
    assert release.verdict.champion_version == winner
    assert alias_of(world.client, world.model, release.version) == release.alias
    promotions = [decision for decision in world.decisions() if decision[0] == "promote"]
    assert promotions[0] == ("promote", "2", winner)
    assert [before for _, before, _ in promotions].count("2") == 1


_PROGRAM = """
import sys
from pathlib import Path
from mlflow import MlflowClient
from tasks.register import register
from tasks.registry.aliases import ChampionMovedError, load_version
from tasks.trackers.mlflow_run import connect_patiently
from training.storage.paths import Home
from training.plan import RunPlan
from training.records import DatasetVersion, Evaluation, TrainedModel

kinds = (RunPlan, DatasetVersion, TrainedModel, Evaluation)
records = [kind.model_validate_json((Path(sys.argv[1]) / kind.__name__).read_text()) for kind in kinds]
connect_patiently(records[0])
load_version(Home(Path(records[0].home)), records[0].model, "1")  # once, as the first time takes seconds

def set_alias_when_told(client, model, alias, version, set_alias=MlflowClient.set_registered_model_alias):
    if alias == "champion":
        print("at the alias", flush=True)
        sys.stdin.readline()
    set_alias(client, model, alias, version)

MlflowClient.set_registered_model_alias = set_alias_when_told
print("ready", flush=True)
sys.stdin.readline()
try:
    print(register.fn(*records).alias)
except ChampionMovedError:
    print("moved")
"""
Said = Queue[tuple[int, str]]


@contextmanager
def registering(
    candidate: Candidate, folder: Path, number: int, said: Said
) -> Iterator["subprocess.Popen[str]"]:
    """Start a process that registers the candidate on command; the lines that it prints arrive in `said`."""
    folder.mkdir()
    for record in candidate:
        (folder / type(record).__name__).write_text(record.model_dump_json())
    command = [sys.executable, "-c", _PROGRAM, str(folder)]
    program = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def listen() -> None:
        assert program.stdout is not None
        for line in program.stdout:
            said.put((number, line.strip()))

    threading.Thread(target=listen, daemon=True).start()
    try:
        yield program
    finally:
        program.kill()
        program.wait()


def tell(program: "subprocess.Popen[str]", line: str) -> None:
    assert program.stdin is not None
    program.stdin.write(f"{line}\n")
    program.stdin.flush()


@pytest.mark.parametrize(
    ("error", "again"), [(ChampionMovedError("moved"), False), (TransientError("away"), True)]
)
def test_an_error_that_needs_a_new_comparison_is_not_retried(error: Exception, again: bool) -> None:
    condition = register.retry_condition_fn
    assert condition is not None
    assert condition(register, None, Failed(data=error)) is again  # type: ignore[arg-type]
