"""Candidates that register at the same time: each is held against the champion that it replaces."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from candidates import Candidate, World
from prefect.states import Failed

from tasks.register import register
from tasks.registry import ChampionMovedError, alias_of, champion_of
from training.errors import TransientError


def test_of_two_that_register_at_once_one_is_compared_with_the_other(world: World) -> None:
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(outcome, world.candidates))
    check_one_won(world, outcomes)


def test_of_two_processes_that_register_at_once_one_is_compared_with_the_other(
    world: World, tmp_path: Path
) -> None:
    programs = [start(candidate, tmp_path / str(number)) for number, candidate in enumerate(world.candidates)]
    for program in programs:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
    said = [program.communicate("go\n", timeout=120)[0].strip() for program in programs]
    assert [program.returncode for program in programs] == [0, 0]
    check_one_won(world, said)


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
    first, *_ = world.decisions()
    assert first == ("promote", "2", winner)
    assert [one[1] for one in world.decisions() if one[0] == "promote"].count("2") == 1


_PROGRAM = """
import sys
from pathlib import Path
from tasks.register import register
from tasks.registry import ChampionMovedError
from training.plan import RunPlan
from training.records import DatasetVersion, Evaluation, TrainedModel

kinds = (RunPlan, DatasetVersion, TrainedModel, Evaluation)
records = [kind.model_validate_json((Path(sys.argv[1]) / kind.__name__).read_text()) for kind in kinds]
import mlflow.pytorch, torch
print("ready", flush=True)
sys.stdin.readline()
try:
    print(register.fn(*records).alias)
except ChampionMovedError:
    print("moved")
"""


def start(candidate: Candidate, folder: Path) -> "subprocess.Popen[str]":
    """A process that registers the candidate when it is told to."""
    folder.mkdir()
    for record in candidate:
        (folder / type(record).__name__).write_text(record.model_dump_json())
    command = [sys.executable, "-c", _PROGRAM, str(folder)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize(
    ("error", "again"), [(ChampionMovedError("moved"), False), (TransientError("away"), True)]
)
def test_what_takes_a_new_comparison_is_not_just_tried_again(error: Exception, again: bool) -> None:
    condition = register.retry_condition_fn
    assert condition is not None
    assert condition(register, None, Failed(data=error)) is again  # type: ignore[arg-type]
