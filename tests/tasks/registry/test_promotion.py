"""Registration is a transaction: interrupted after any write and repeated, it has the result of a single run."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from candidates import World
from hostile_model import arm
from mlflow import MlflowClient
from mlflow.models import Model

import tasks.registry.decisions
from tasks.registry.aliases import ROLLED_BACK_TAG, ChampionMovedError, champion_of, version_tags
from tasks.registry.own_digests import OwnDigests, kept_digests, record_of
from tasks.registry.rollback import roll_back, unfinished_rollback
from tasks.trackers.mlflow_run import open_run
from training.errors import DataError
from training.records import NOT_AGAIN, Release
from training.storage.files import digest_file
from training.storage.paths import Home

REFUSED = {"floor": 1.0}


class Crash(BaseException):
    """A power cut; a BaseException that no code of Evergreen catches by name."""


def crash_after(patch: pytest.MonkeyPatch, owner: Any, name: str, time: int = 1) -> None:
    """Raise :class:`Crash` right after call number `time` of `owner.name`."""
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
    """Check that version 3 is champion, exists once, and that a rollback restores version 2."""
    assert (release.version, release.alias) == ("3", "champion")
    assert world.versions() == [3]
    assert world.aliases() == ("3", "2", None)
    assert [decision for decision in world.decisions() if decision[0] == "promote"] == [("promote", "2", "3")]
    assert world.decisions()[-1] == ("promote", "2", "3")
    tags = world.client.get_model_version(world.model, "3").tags
    assert (tags["evergreen.verdict"], tags["evergreen.why"]) == ("promote", release.verdict.summary[:500])
    for name, value in release.metrics.items():
        points = world.client.get_metric_history(release.mlflow_run_id, name)
        assert [(point.value, point.step) for point in points] == [(value, world.candidate.trained.steps)], (
            name
        )
    assert roll_back(world.client, world.home, world.model, "to see") == ("3", "2")
    assert world.aliases() == ("2", "3", None)


def check_logged_models(world: World) -> None:
    """Check that MLflow has no incomplete logged model, and that all models lie beside the run's other artifacts."""
    run = world.client.get_run(world.client.get_model_version(world.model, "3").run_id).info
    models = world.client.search_logged_models([run.experiment_id], f"source_run_id = '{run.run_id}'")
    assert {str(model.status) for model in models} == {"READY"}
    artifacts = run.artifact_uri.partition(run.run_id)[0]
    assert all(model.artifact_location.startswith(artifacts) for model in models)


UNREGISTERED = [
    (MlflowClient, "create_logged_model"),
    (MlflowClient, "log_model_artifacts"),
    (Model, "log"),
    (MlflowClient, "create_model_version"),
]
PROMOTION = [
    (MlflowClient, "set_registered_model_alias", 1),
    (MlflowClient, "set_registered_model_alias", 2),
    (tasks.registry.decisions, "write_records"),
    (MlflowClient, "delete_registered_model_alias"),
    (MlflowClient, "log_dict"),
    (MlflowClient, "set_model_version_tag", 1),
    (MlflowClient, "set_model_version_tag", 2),
    (MlflowClient, "log_batch"),
]


@pytest.mark.extended
@pytest.mark.parametrize("point", UNREGISTERED, ids=lambda point: point[1])
def test_a_crash_before_the_version_exists(world: World, point: tuple[Any, ...]) -> None:
    crashed(world.candidate.register, *point)
    check_promoted(world, world.candidate.register())
    check_logged_models(world)


@pytest.mark.extended
@pytest.mark.parametrize("point", PROMOTION, ids=lambda point: "-".join(map(str, point[1:])))
def test_a_crash_while_a_challenger_is_promoted(world: World, point: tuple[Any, ...]) -> None:
    kept = world.candidate.register(**REFUSED)
    assert (kept.alias, world.aliases()) == ("challenger", ("2", "1", "3"))
    crashed(world.candidate.register, *point)
    check_promoted(world, world.candidate.register())


@pytest.mark.extended
@pytest.mark.parametrize(
    "point",
    [(MlflowClient, "set_registered_model_alias"), (tasks.registry.decisions, "write_records")],
    ids=lambda point: point[1],
)
def test_a_crash_while_a_candidate_is_kept(world: World, point: tuple[Any, ...]) -> None:
    crashed(lambda: world.candidate.register(**REFUSED), *point)
    release = world.candidate.register(**REFUSED)
    assert (release.version, release.alias, world.versions()) == ("3", "challenger", [3])
    assert world.aliases() == ("2", "1", "3")
    assert world.decisions() == [("keep", None, "3")]


def test_registering_leaves_the_run_unfinished(world: World) -> None:
    plan = world.candidate.plan
    run_id = open_run(world.client, plan)
    assert world.candidate.register().mlflow_run_id == run_id
    assert world.client.get_run(run_id).info.status == "RUNNING"


@pytest.mark.extended
def test_a_verdict_is_not_recorded_when_the_champion_moved_during_a_crash(world: World) -> None:
    """The crash comes before the alias moves; when the run is repeated, the champion is another version."""
    candidate, other = world.candidates
    crashed(candidate.register, MlflowClient, "set_registered_model_alias", 1)
    assert other.register().alias == "champion"
    with pytest.raises(ChampionMovedError, match="was version 2 when the comparison began and is 4 now"):
        candidate.register()
    again = candidate.compared_again()
    assert again.evaluation.champion_version == "4"
    assert (again.register().version, world.versions()) == ("3", [3])
    assert world.decisions()[0] == ("promote", "2", "4")


@pytest.mark.extended
@pytest.mark.parametrize("gate", [{}, REFUSED], ids=["compared", "refused"])
def test_no_verdict_is_reached_against_a_former_champion(world: World, gate: dict[str, Any]) -> None:
    """A person rolls back between the comparison and the registration: no look is spent, and nothing is kept."""
    roll_back(world.client, world.home, world.model, "worse")
    before = [version_tags(world.client, world.model, number) for number in ("1", "2")]
    with pytest.raises(ChampionMovedError, match="was version 2 when the comparison began and is 1 now"):
        world.candidate.register(**gate)
    assert [version_tags(world.client, world.model, number) for number in ("1", "2")] == before
    assert [action for action, *_ in world.decisions()] == ["rollback"]
    assert world.aliases() == ("1", "2", None)
    release = world.candidate.compared_again().register(**gate)
    assert release.verdict.champion_version == "1"


@pytest.mark.extended
def test_a_version_rolled_back_before_its_run_could_finish_stays_so(world: World) -> None:
    crashed(world.candidate.register, MlflowClient, "log_dict")
    assert world.aliases() == ("3", "2", None)
    roll_back(world.client, world.home, world.model, "by hand")
    release = world.candidate.register()
    assert release.verdict.promote
    assert (release.alias, world.aliases()) == ("previous", ("2", "3", None))
    assert world.decisions()[-1] == ("rollback", "3", "2")
    version = world.client.get_model_version(world.model, release.version)
    assert version.tags["evergreen.why"] == f"Not promoted: {NOT_AGAIN}"
    assert version.description.endswith(f"Kept, not promoted: {NOT_AGAIN}.")
    roll_back(world.client, world.home, world.model, "it was right after all", "3")
    assert world.candidate.register().alias == "champion"
    assert world.aliases() == ("3", "2", None)


@pytest.mark.extended
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


CUT_ROLLBACK = [
    ("set_registered_model_alias", 1),
    ("set_registered_model_alias", 2),
    ("delete_model_version_tag",),
]


@pytest.mark.slow
@pytest.mark.parametrize("point", CUT_ROLLBACK, ids=lambda point: "-".join(map(str, point)))
@pytest.mark.parametrize("by", ["rollback", "register"])
def test_an_interrupted_rollback_is_finished_by_the_next(
    world: World, point: tuple[Any, ...], by: str
) -> None:
    world.candidate.register()
    roll_back(world.client, world.home, world.model, "the first")
    roll_back(world.client, world.home, world.model, "back, which leaves a mark to be removed next", "3")
    with pytest.MonkeyPatch.context() as patch:
        crash_after(patch, MlflowClient, *point)
        with pytest.raises(Crash):
            roll_back(world.client, world.home, world.model, "by hand")
    if by == "rollback":
        assert roll_back(world.client, world.home, world.model, "once more", "2")[1] == "2"
    else:
        assert world.candidate.register().alias == "previous"
    assert world.aliases() == ("2", "3", None)
    assert world.decisions()[-1] == ("rollback", "3", "2")
    marked = [n for n in ("2", "3") if ROLLED_BACK_TAG in version_tags(world.client, world.model, n)]
    assert marked == ["3"]
    assert roll_back(world.client, world.home, world.model, "and back", "3") == ("2", "3")


@pytest.mark.extended
def test_the_rollback_of_another_home_is_not_taken_for_an_interrupted_one(
    world: World, tmp_path: Path
) -> None:
    world.candidate.register()
    roll_back(world.client, Home(tmp_path / "other"), world.model, "by another home")
    assert world.aliases() == ("2", "3", None)
    assert unfinished_rollback(world.client, world.home, world.model) is None
    assert roll_back(world.client, world.home, world.model, "and back", "3") == ("2", "3")
    assert world.aliases() == ("3", "2", None)


def test_a_champion_that_would_run_code_is_not_loaded(world: World, tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    program = champions_program(world)
    kept = program.read_bytes()
    world.candidate.plan.paths.evaluation.rename(tmp_path / "compared")
    try:
        arm(program, mark)
        with pytest.raises(DataError, match="not a model that Evergreen registered"):
            world.candidate.compared_again()
    finally:
        program.write_bytes(kept)
        (tmp_path / "compared").rename(world.candidate.plan.paths.evaluation)
    assert not mark.exists()


def champions_program(world: World) -> Path:
    files = world.client.get_model_version_download_uri(world.model, "2").removeprefix("file://")
    return Path(files) / "data" / "model.pt2"


def test_the_home_keeps_the_digests_of_what_it_registers(world: World) -> None:
    release = world.candidate.register()
    tags = world.client.get_model_version(world.model, release.version).tags
    digests = OwnDigests(
        model_file=tags["evergreen.model_file"],
        metadata=tags["evergreen.model_metadata"],
        weights=tags["evergreen.weights_file"],
    )
    assert kept_digests(world.home, world.model, release.version) == digests


def test_the_home_adopts_the_digests_of_a_version_whose_registration_was_killed(world: World) -> None:
    """Tags that were changed together with the file, before the next start, do not hide that change."""
    crashed(world.candidate.register, MlflowClient, "create_model_version")
    entry = world.client.get_model_version(world.model, "3")
    location = world.client.get_logged_model(entry.source.removeprefix("models:/")).artifact_location
    program = Path(location.removeprefix("file://")) / "data" / "model.pt2"
    content = program.read_bytes()
    registered = entry.tags["evergreen.model_file"]
    program.write_bytes(champions_program(world).read_bytes())
    world.client.set_model_version_tag(world.model, "3", "evergreen.model_file", digest_file(program))
    with pytest.raises(DataError, match="is not the file that this home registered"):
        world.candidate.register()
    program.write_bytes(content)
    world.client.set_model_version_tag(world.model, "3", "evergreen.model_file", registered)
    assert (world.candidate.register().alias, world.versions()) == ("champion", [3])
    kept = kept_digests(world.home, world.model, "3")
    assert kept is not None
    assert kept.model_file == registered
    assert not list(record_of(world.home, world.model, "3").parent.glob("announced-*"))


def damage(world: World, number: str) -> None:
    entry = world.client.get_model_version(world.model, number)
    location = world.client.get_logged_model(entry.source.removeprefix("models:/")).artifact_location
    program = Path(location.removeprefix("file://")) / "data" / "model.pt2"
    content = bytearray(program.read_bytes())
    content[len(content) // 2] ^= 1
    program.write_bytes(content)


def test_a_damaged_version_without_an_alias_is_registered_again(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Scenario: a power cut after the version was created, before its files were on the disk."""
    crashed(world.candidate.register, MlflowClient, "create_model_version")
    damage(world, "3")
    release = world.candidate.register()
    assert (release.version, release.alias) == ("4", "champion")
    assert world.versions() == [4]
    assert world.aliases() == ("4", "2", None)
    assert "The version is deleted, and the model registered again" in caplog.text


def test_a_damaged_version_with_an_alias_is_not_promoted(world: World) -> None:
    crashed(world.candidate.register, MlflowClient, "create_model_version")
    damage(world, "3")
    world.client.set_registered_model_alias(world.model, "approved", "3")
    with pytest.raises(Exception, match="its digest differs"):
        world.candidate.register()
    assert world.aliases() == ("2", "1", None)


def test_a_logged_model_that_was_deleted_in_mlflow_does_not_stop_a_new_judgement(world: World) -> None:
    assert world.candidate.register(**REFUSED).alias == "challenger"
    source = world.client.get_model_version(world.model, "3").source
    world.client.delete_logged_model(source.removeprefix("models:/"))
    check_promoted(world, world.candidate.register())
