"""Registration as a transaction: cut short after any write and begun again, it ends as if nothing had happened."""

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from mlflow import MlflowClient
from mlflow.models import Model
from prefect.states import Failed
from tracked import planned

import tasks.registry
from tasks.evaluate import evaluate
from tasks.register import register
from tasks.registry import (
    CHALLENGER,
    CHAMPION,
    PREVIOUS,
    ChampionMovedError,
    alias_of,
    champion_of,
    roll_back,
)
from tasks.tracking import RUN_KEY_TAG, connect, open_run
from training.errors import TransientError
from training.launch import launch, make_job
from training.paths import Home
from training.plan import RunPlan
from training.records import DatasetVersion, Evaluation, Release, TrainedModel

REFUSED = {"floor": 1.0}


class Crash(BaseException):
    """A power cut; nothing in Evergreen knows it."""


class Candidate(NamedTuple):
    """A finished training, compared with champion version 2."""

    plan: RunPlan
    version: DatasetVersion
    trained: TrainedModel
    evaluation: Evaluation

    def register(self, **gate: Any) -> Release:
        settings = self.plan.settings
        changed = settings.model_copy(update={"gate": settings.gate.model_copy(update=gate)})
        plan = self.plan.model_copy(update={"settings": changed})
        return register.fn(plan, self.version, self.trained, self.evaluation)

    def compared_again(self) -> "Candidate":
        return self._replace(evaluation=evaluate.fn(self.plan, self.version, self.trained))

    def under(self, model: str) -> "Candidate":
        settings = self.plan.settings
        named = settings.model_copy(
            update={"tracking": settings.tracking.model_copy(update={"model": model})}
        )
        return self._replace(plan=self.plan.model_copy(update={"settings": named}))


class World(NamedTuple):
    """A home in which version 2 of `model` is champion and version 1 was before; both are a poor model."""

    home: Home
    client: MlflowClient
    model: str
    candidates: tuple[Candidate, Candidate]

    @property
    def candidate(self) -> Candidate:
        return self.candidates[0]

    def aliases(self) -> tuple[str | None, ...]:
        return tuple(
            champion_of(self.client, self.model, alias) for alias in (CHAMPION, PREVIOUS, CHALLENGER)
        )

    def versions(self) -> list[int]:
        wanted = f"name = '{self.model}' and tags.`{RUN_KEY_TAG}` = '{self.candidate.plan.run_key}'"
        return [int(one.version) for one in self.client.search_model_versions(wanted)]

    def decisions(self) -> list[tuple[str, str | None, str]]:
        file = self.home.root / "decisions" / f"{self.model}.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        return [(one["action"], one.get("from"), one.get("to") or one["candidate"]) for one in lines]


def trained_candidate(home: Home, **training: Any) -> Candidate:
    plan, version = planned(home, training=training)
    trained = launch(make_job(plan.run_key, plan.paths, plan.recipe, plan.settings, version))
    return Candidate(plan, version, trained, evaluate.fn(plan, version, trained))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Home, Release, tuple[Candidate, Candidate]]:
    home = Home(tmp_path_factory.mktemp("home"))
    poor = trained_candidate(home, epochs=1, learning_rate=1e-6).register(floor=0.0)
    good = trained_candidate(home, epochs=4), trained_candidate(home, epochs=5)
    first, second = (
        one._replace(evaluation=one.evaluation.model_copy(update={"champion_version": "2"})) for one in good
    )
    return home, poor, (first, second)


@pytest.fixture
def world(
    trained: tuple[Home, Release, tuple[Candidate, Candidate]], request: pytest.FixtureRequest
) -> World:
    home, poor, (first, second) = trained
    client, model = connect(None, home), f"model-{abs(hash(request.node.nodeid))}"
    source = client.get_model_version(poor.model, poor.version)
    client.create_registered_model(model)
    for alias in (PREVIOUS, CHAMPION):
        made = client.create_model_version(model, source.source, run_id=source.run_id, tags=dict(source.tags))
        client.set_registered_model_alias(model, alias, made.version)
    return World(home, client, model, (first.under(model), second.under(model)))


def crash_after(patch: pytest.MonkeyPatch, owner: Any, name: str, time: int = 1) -> None:
    """End the process, as far as Evergreen can tell, when `owner.name` has done its work for the n-th time."""
    done, original = Counter[str](), getattr(owner, name)

    def crashing(*args: Any, **options: Any) -> Any:
        result = original(*args, **options)
        done[name] += 1
        if done[name] == time:
            raise Crash
        return result

    patch.setattr(owner, name, crashing)


def crashed(attempt: Callable[[], Release], *point: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        crash_after(patch, *point)
        with pytest.raises(Crash):
            attempt()


def check_promoted(world: World, release: Release) -> None:
    """Version 3 is champion, once; 2 was before, and comes back when asked for."""
    assert (release.version, release.alias) == ("3", "champion")
    assert world.versions() == [3]
    assert world.aliases() == ("3", "2", None)
    assert [one for one in world.decisions() if one[0] == "promote"] == [("promote", "2", "3")]
    assert world.decisions()[-1] == ("promote", "2", "3")
    tags = world.client.get_model_version(world.model, "3").tags
    assert (tags["evergreen.verdict"], tags["evergreen.why"]) == ("promote", release.verdict.summary[:500])
    for name, value in release.metrics.items():
        points = world.client.get_metric_history(release.mlflow_run_id, name)
        assert [(one.value, one.step) for one in points] == [(value, world.candidate.trained.steps)], name
    assert roll_back(world.client, world.home, world.model, "to see") == ("3", "2")
    assert world.aliases() == ("2", "3", None)


def check_logged_models(world: World) -> None:
    """Nothing half made is left in MLflow, and all lies where the run's other artifacts are."""
    run = world.client.get_run(world.client.get_model_version(world.model, "3").run_id).info
    found = world.client.search_logged_models([run.experiment_id], f"source_run_id = '{run.run_id}'")
    assert {str(one.status) for one in found} == {"READY"}
    artifacts = run.artifact_uri.partition(run.run_id)[0]
    assert all(one.artifact_location.startswith(artifacts) for one in found)


UNREGISTERED = [
    (MlflowClient, "create_logged_model"),
    (MlflowClient, "log_model_artifacts"),
    (Model, "log"),
    (MlflowClient, "create_model_version"),
]
PROMOTION = [
    (MlflowClient, "set_registered_model_alias", 1),
    (MlflowClient, "set_registered_model_alias", 2),
    (tasks.registry, "write_text"),
    (MlflowClient, "delete_registered_model_alias"),
    (MlflowClient, "log_dict"),
    (MlflowClient, "set_model_version_tag", 1),
    (MlflowClient, "set_model_version_tag", 2),
    (MlflowClient, "log_batch"),
]


@pytest.mark.parametrize("point", UNREGISTERED, ids=lambda point: point[1])
def test_a_crash_before_there_is_a_version(world: World, point: tuple[Any, ...]) -> None:
    crashed(world.candidate.register, *point)
    check_promoted(world, world.candidate.register())
    check_logged_models(world)


@pytest.mark.parametrize("point", PROMOTION, ids=lambda point: "-".join(map(str, point[1:])))
def test_a_crash_while_a_challenger_is_promoted(world: World, point: tuple[Any, ...]) -> None:
    kept = world.candidate.register(**REFUSED)
    assert (kept.alias, world.aliases()) == ("challenger", ("2", "1", "3"))
    crashed(world.candidate.register, *point)
    check_promoted(world, world.candidate.register())


@pytest.mark.parametrize(
    "point",
    [(MlflowClient, "set_registered_model_alias"), (tasks.registry, "write_text")],
    ids=lambda one: one[1],
)
def test_a_crash_while_a_candidate_is_kept(world: World, point: tuple[Any, ...]) -> None:
    crashed(lambda: world.candidate.register(**REFUSED), *point)
    release = world.candidate.register(**REFUSED)
    assert (release.version, release.alias, world.versions()) == ("3", "challenger", [3])
    assert world.aliases() == ("2", "1", "3")
    assert world.decisions() == [("keep", None, "3")]


def test_registering_does_not_call_the_run_finished(world: World) -> None:
    plan = world.candidate.plan
    run_id = open_run(world.client, plan)
    assert world.candidate.register().mlflow_run_id == run_id
    assert world.client.get_run(run_id).info.status == "RUNNING"


def test_a_verdict_that_was_overtaken_by_a_crash_is_not_on_record(world: World) -> None:
    """The crash comes before the alias moved; by the next try the champion is another one."""
    one, other = world.candidates
    crashed(one.register, MlflowClient, "set_registered_model_alias", 1)
    assert other.register().alias == "champion"
    with pytest.raises(ChampionMovedError, match="was version 2 when the comparison began and is 4 now"):
        one.register()
    again = one.compared_again()
    assert again.evaluation.champion_version == "4"
    assert (again.register().version, world.versions()) == ("3", [3])
    assert world.decisions()[0] == ("promote", "2", "4")


def test_a_version_rolled_back_before_its_run_could_finish_stays_so(world: World) -> None:
    crashed(world.candidate.register, MlflowClient, "log_dict")
    assert world.aliases() == ("3", "2", None)
    roll_back(world.client, world.home, world.model, "by hand")
    release = world.candidate.register()
    assert release.verdict.promote
    assert (release.alias, world.aliases()) == ("previous", ("2", "3", None))
    assert world.decisions()[-1] == ("rollback", "3", "2")
    roll_back(world.client, world.home, world.model, "it was right after all")
    assert world.candidate.register().alias == "champion"
    assert world.aliases() == ("3", "2", None)


@pytest.mark.parametrize("point", [("set_model_version_tag",), ("set_registered_model_alias", 1)])
def test_an_interrupted_rollback_is_not_undone_by_the_run_that_was_rolled_back(
    world: World, point: tuple[Any, ...]
) -> None:
    world.candidate.register()
    with pytest.MonkeyPatch.context() as patch:
        crash_after(patch, MlflowClient, *point)
        with pytest.raises(Crash):
            roll_back(world.client, world.home, world.model, "by hand")
    before = champion_of(world.client, world.model)
    world.candidate.register()
    assert champion_of(world.client, world.model) == before


def test_a_damaged_model_is_not_promoted(world: World) -> None:
    crashed(world.candidate.register, MlflowClient, "create_model_version")
    entry = world.client.get_model_version(world.model, "3")
    place = world.client.get_logged_model(entry.source.removeprefix("models:/")).artifact_location
    program = Path(place.removeprefix("file://")) / "data" / "model.pt2"
    content = bytearray(program.read_bytes())
    content[len(content) // 2] ^= 1
    program.write_bytes(content)
    with pytest.raises(Exception, match="its digest differs"):
        world.candidate.register()
    assert world.aliases() == ("2", "1", None)


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
