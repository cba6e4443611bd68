"""Random, seeded damage to every kind of record: a reader returns the truth or names the file, and nothing else."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tracked import planned

from flows.preview import preview
from tasks.cleanup.removals import Collection
from tasks.cleanup.retention import collect
from tasks.comparison import (
    COMPARISON,
    EVALUATION,
    PREDICTIONS,
    Comparison,
    comparison_folders,
    find_evaluation,
    owner_of,
)
from tasks.evaluate import evaluate
from tasks.register import register
from tasks.registry.aliases import CHAMPION, PREVIOUS
from tasks.registry.decisions import Decision, read_decisions, record_decision
from tasks.registry.own_digests import kept_digests, record_of
from tasks.registry.rollback import roll_back
from tasks.reuse import find_release, read_release
from tasks.trackers.mlflow_run import connect
from tasks.train import keep_plan
from tasks.verify import verify
from training.attempts.heartbeat import read_beats
from training.attempts.history import Failure, note, read_attempts, read_failures
from training.attempts.metrics import MetricsFile
from training.checkpoints.checkpoint_files import MANIFEST, read_manifest
from training.data import dataset
from training.errors import DataError, EvergreenError
from training.plan import RunPlan, arguments_of_run
from training.records import DatasetVersion, Evaluation, TrainedModel
from training.storage.files import digest_file
from training.storage.paths import TRAINED, Home
from training.storage.record_files import find_record, read_record, write_record
from training.supervision.launch import finished, launch, make_job
from training.trainers.replay_outcome import read_outcome

TIMES = [25, pytest.param(200, marks=pytest.mark.slow)]
Damage = Callable[[bytes, bytes, random.Random], bytes]
Ask = Callable[["Subject"], Any]


class Subject(NamedTuple):
    """A home with a finished run, `plan`, whose records are damaged, and a run `other` with replacement records."""

    home: Home
    plan: RunPlan
    other: RunPlan


def cut(content: bytes, _: bytes, dice: random.Random) -> bytes:
    return content[: dice.randrange(len(content))]


def zero(content: bytes, _: bytes, dice: random.Random) -> bytes:
    start, stop = sorted(dice.sample(range(len(content) + 1), 2))
    return content[:start] + bytes(stop - start) + content[stop:]


def flip(content: bytes, _: bytes, dice: random.Random) -> bytes:
    index = dice.randrange(len(content))
    return content[:index] + bytes([content[index] ^ (1 << dice.randrange(8))]) + content[index + 1 :]


def swap(content: bytes, other: bytes, dice: random.Random) -> bytes:
    """The content of another run's file, or one line from that file, or two lines exchanged."""
    mine, theirs = content.splitlines(keepends=True), other.splitlines(keepends=True)
    if dice.random() < 0.3 or len(mine) < 2:
        return other
    first, second = dice.sample(range(len(mine)), 2)
    if dice.random() < 0.5:
        mine[first] = dice.choice(theirs)
    else:
        mine[first], mine[second] = mine[second], mine[first]
    return b"".join(mine)


def deeply_nested(_: bytes, __: bytes, ___: random.Random) -> bytes:
    """JSON on which Python's parser raises RecursionError."""
    return b"[" * 100_000 + b"\n"


DAMAGES: list[Damage] = [cut, zero, flip, swap]


def comparison(plan: RunPlan) -> Path:
    return comparison_folders(plan.paths)[0]


def checkpoint(plan: RunPlan) -> Path:
    return sorted(plan.paths.checkpoints.glob("step-*"))[-1]


def version(plan: RunPlan) -> Path:
    return Home(Path(plan.home)).dataset(plan.recipe.name, plan.fingerprint)


def read_comparison(subject: Subject) -> Comparison | None:
    folder = comparison(subject.plan)
    return find_record(folder / COMPARISON, Comparison, owner_of(folder))


class Kind(NamedTuple):
    """Where a record of a run is, and how it is read; of `lines`, the end may be missing without a message."""

    file: Callable[[RunPlan], Path]
    read: Ask
    lines: bool = False


KINDS: dict[str, Kind] = {
    "ingredients": Kind(
        lambda plan: plan.paths.ingredients,
        lambda subject: read_record(subject.plan.paths.ingredients, RunPlan, subject.plan.paths.root.name),
    ),
    "trained": Kind(
        lambda plan: plan.paths.model / TRAINED,
        lambda subject: finished(subject.plan.paths, subject.plan.run_key),
    ),
    "release": Kind(lambda plan: plan.paths.release, lambda subject: read_release(subject.plan)),
    "comparison": Kind(lambda plan: comparison(plan) / COMPARISON, read_comparison),
    "evaluation": Kind(
        lambda plan: comparison(plan) / EVALUATION, lambda subject: find_evaluation(comparison(subject.plan))
    ),
    "predictions": Kind(
        lambda plan: comparison(plan) / PREDICTIONS, lambda subject: find_evaluation(comparison(subject.plan))
    ),
    "checkpoint": Kind(
        lambda plan: checkpoint(plan) / MANIFEST, lambda subject: read_manifest(checkpoint(subject.plan))
    ),
    "attempts": Kind(
        lambda plan: plan.paths.attempts, lambda subject: read_attempts(subject.plan.paths), True
    ),
    "failures": Kind(
        lambda plan: plan.paths.failures, lambda subject: read_failures(subject.plan.paths), True
    ),
    "metrics": Kind(
        lambda plan: plan.paths.metrics, lambda subject: MetricsFile(subject.plan.paths.metrics).read(), True
    ),
    "beats": Kind(
        lambda plan: plan.paths.beats / "rank-0.json", lambda subject: read_beats(subject.plan.paths)
    ),
    "decisions": Kind(
        lambda plan: Path(plan.home) / "decisions" / f"{plan.model}.jsonl",
        lambda subject: read_decisions(subject.home, subject.plan.model).undamaged(),
        True,
    ),
    "digests": Kind(
        lambda plan: record_of(Home(Path(plan.home)), plan.model, "1"),
        lambda subject: kept_digests(subject.home, subject.plan.model, "1"),
    ),
    "replay": Kind(lambda plan: plan.paths.replay, lambda subject: read_outcome(subject.plan.paths)),
    "home-id": Kind(lambda plan: Path(plan.home) / "home-id", lambda subject: subject.home.identity),
    "dataset": Kind(
        lambda plan: version(plan) / "manifest.json",
        lambda subject: dataset.find(subject.home, subject.plan.recipe.name, subject.plan.fingerprint),
    ),
}


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """The other run has only its records: registering a second model would take as long as all these tests."""
    home = Home(tmp_path_factory.mktemp("fuzzed") / "home")
    home.root.mkdir()
    other, _, _ = evaluated(home, data={"max_train_rows": 200}, training={"epochs": 1})
    plan, trained, evaluation = evaluated(home)
    release = register.fn(plan, data_of(plan), trained, evaluation)
    write_record(plan.paths.release, release, plan.paths.root.name)
    theirs = release.model_copy(update={"run_key": other.run_key, "version": "2"})
    write_record(other.paths.release, theirs, other.paths.root.name)
    return Subject(home, plan, other)


def evaluated(home: Home, **sections: Any) -> tuple[RunPlan, TrainedModel, Evaluation]:
    plan, data = planned(home, **sections)
    trained = launch(make_job(plan.run_key, plan.paths, plan.recipe, plan.settings, data))
    for number in (1, 2):
        note(plan.paths.failures, Failure(number=number, at=0.5, error="a lost worker"))
    return plan, trained, evaluate.fn(plan, data, trained)


def data_of(plan: RunPlan) -> DatasetVersion:
    data = plan.find_dataset()
    assert data is not None
    return data


@pytest.fixture(scope="module")
def truths(subject: Subject) -> dict[str, Any]:
    """The answers of the commands while nothing is damaged."""
    return {name: ask(subject) for name, ask in COMMANDS.items()}


@pytest.fixture(autouse=True)
def undamaged(subject: Subject) -> Any:
    """Restore all records after the test, and remove files that were set aside."""
    files = {kind.file(subject.plan): kind.file(subject.plan).read_bytes() for kind in KINDS.values()}
    yield
    for file, content in files.items():
        file.write_bytes(content)
    for left in subject.home.root.rglob("*.damaged-*"):
        shutil.rmtree(left) if left.is_dir() else left.unlink()


def foreign(kind: str, subject: Subject) -> bytes:
    """The other run's record; if both runs share the file, the record of attempts instead."""
    mine, theirs = (KINDS[kind].file(plan) for plan in (subject.plan, subject.other))
    return (theirs if theirs != mine else subject.other.paths.attempts).read_bytes()


def says(
    ask: Ask, subject: Subject, file: Path, truth: Any, lines: bool, log: pytest.LogCaptureFixture
) -> str:
    """Classify the answer: true, named (an error or warning names the file), or shorter; anything else fails."""
    log.clear()
    try:
        answer = ask(subject)
    except EvergreenError as error:
        answer, said = None, str(error)
    else:
        said = log.text
    if answer == truth:
        return "true"
    if str(file) in said:
        return "named"
    assert lines
    assert answer == truth[: len(answer)]  # cut between two lines, as if the later lines had not been written
    return "shorter"


@pytest.mark.extended
@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_read_is_true_or_names_the_file(
    subject: Subject, kind: str, damage: Damage, times: int, caplog: pytest.LogCaptureFixture
) -> None:
    read, file, lines = KINDS[kind].read, KINDS[kind].file(subject.plan), KINDS[kind].lines
    whole, other, dice = file.read_bytes(), foreign(kind, subject), random.Random(f"{kind} {damage.__name__}")
    truth, outcomes = read(subject), set()
    for number in range(times):
        file.write_bytes((damage if number else deeply_nested)(whole, other, dice))
        if kind == "beats":  # an unreadable heartbeat counts as none
            assert read(subject) in (truth, [])
        else:
            outcomes.add(says(read, subject, file, truth, lines, caplog))
    assert outcomes & {"named", "shorter"} or kind == "beats"
    assert damage is cut or "shorter" not in outcomes


def removals(subject: Subject) -> Collection:
    """Without folders outside of the home, which tests beside this one leave. Raises an error that `gc` reports."""
    collection = collect(subject.home, keep=1, dry_run=True)
    for said in collection.failed.values():
        raise DataError(said)
    return collection.model_copy(
        update={"removals": tuple(removal for removal in collection.removals if removal.recipe)}
    )


COMMANDS: dict[str, Ask] = {
    "plan": lambda subject: preview("digits", subject.plan.settings.model_dump(), subject.home),
    "reuse": lambda subject: find_release(subject.plan),
    "gc": removals,
    "next": lambda subject: arguments_of_run(subject.home, "digits", subject.plan.run_key),
}


@pytest.mark.extended
@pytest.mark.parametrize("kind", KINDS)
def test_commands_tell_the_truth_or_name_the_file(
    subject: Subject, truths: dict[str, Any], kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    file, dice = KINDS[kind].file(subject.plan), random.Random(kind)
    file.write_bytes(dice.choice(DAMAGES[:3])(file.read_bytes(), b"", dice))
    for name, ask in COMMANDS.items():
        says(ask, subject, file, truths[name], False, caplog)


OF_A_RUN = tuple(name for name in KINDS if name not in ("dataset", "home-id", "decisions", "digests"))


@pytest.mark.extended
@pytest.mark.parametrize("damage", [*DAMAGES[:3], deeply_nested])
@pytest.mark.parametrize("kind", OF_A_RUN)
def test_damage_of_earlier_runs_stops_no_new_run(subject: Subject, kind: str, damage: Damage) -> None:
    """A run with other settings is planned although this record of both earlier runs is damaged."""
    changed = subject.plan.settings.model_dump()
    changed["training"]["epochs"] += 1
    dice = random.Random(f"{kind} {damage.__name__}")
    files = [
        KINDS[kind].file(run) for run in (subject.plan, subject.other) if KINDS[kind].file(run).is_file()
    ]
    kept = {file: file.read_bytes() for file in files}
    try:
        for file, content in kept.items():
            file.write_bytes(damage(content, b"", dice))
        new = preview("digits", changed, subject.home)
    finally:
        for file, content in kept.items():
            file.write_bytes(content)
    assert new.run_key not in (subject.plan.run_key, subject.other.run_key)
    assert new.outcome.startswith(("new run", "first run"))


def test_missing_predictions_are_made_again(subject: Subject, caplog: pytest.LogCaptureFixture) -> None:
    plan, file = subject.plan, comparison(subject.plan) / PREDICTIONS
    before = find_evaluation(comparison(plan))
    assert before is not None
    file.unlink()
    assert says(KINDS["predictions"].read, subject, file, before, False, caplog) == "named"
    trained = finished(plan.paths, plan.run_key)
    assert trained is not None
    again = evaluate.fn(plan, data_of(plan), trained)
    assert again.predictions_digest == before.predictions_digest == digest_file(file)


def test_damaged_records_are_set_aside_and_made_again(subject: Subject) -> None:
    kinds = ("ingredients", "trained", "release", "comparison", "evaluation", "predictions")
    before, plan = read_release(subject.plan), subject.plan
    for kind in kinds:
        file = KINDS[kind].file(plan)
        file.write_bytes(flip(file.read_bytes(), b"", random.Random(kind)))
    plan, data = keep_plan(plan), data_of(plan)
    trained = launch(make_job(plan.run_key, plan.paths, plan.recipe, plan.settings, data))
    release = register.fn(plan, data, trained, evaluate.fn(plan, data, trained))
    assert before is not None
    assert (release.version, release.weights_digest) == (before.version, before.weights_digest)
    assert all(KINDS[kind].read(subject) for kind in kinds if kind != "release")
    aside = {left.name for left in subject.home.root.rglob("*.damaged-0")}
    folders = {"model.damaged-0", f"{comparison(plan).name}.damaged-0"}
    assert aside == folders | {"ingredients.json.damaged-0", "release.json.damaged-0"}


@pytest.mark.parametrize("kind", ["attempts", "failures", "metrics"])
def test_undamaged_lines_are_kept(subject: Subject, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    file, before = KINDS[kind].file(subject.plan), KINDS[kind].read(subject)
    text = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([text[0].replace(b":", b";", 1), *text[1:]]))
    keep_plan(subject.plan)
    assert f"{file} is damaged (line 1: it is not JSON" in caplog.text
    caplog.clear()
    assert KINDS[kind].read(subject) == before[1:]
    assert not caplog.text
    assert file.with_name(f"{file.name}.damaged-0").is_file()


def test_verify_finds_all_damage(subject: Subject) -> None:
    kinds = (
        "ingredients",
        "trained",
        "release",
        "comparison",
        "evaluation",
        "attempts",
        "failures",
        "metrics",
    )
    for kind in kinds:
        file = KINDS[kind].file(subject.plan)
        file.write_bytes(flip(file.read_bytes(), b"", random.Random(3)))
    KINDS["decisions"].file(subject.plan).write_bytes(b"")
    findings = verify(subject.plan.paths, subject.home)
    records = next(finding for finding in findings if finding.name == "records")
    assert records.ok is False
    assert all(
        "damage" in finding.detail or finding.ok is not True
        for finding in findings
        if finding.name == "alias"
    )


def test_a_rollback_keeps_the_decisions_that_can_be_read(
    subject: Subject, caplog: pytest.LogCaptureFixture
) -> None:
    client, model, home = connect(None, subject.home), subject.plan.model, subject.home
    first = client.get_model_version(model, "1")
    client.create_model_version(model, first.source, run_id=first.run_id, tags=first.tags)
    for alias, number in ((CHAMPION, "2"), (PREVIOUS, "1")):
        client.set_registered_model_alias(model, alias, number)
    record_decision(home, model, Decision(action="promote", before="1", to="2", why="better"))
    file = KINDS["decisions"].file(subject.plan)
    line, *rest = file.read_text().splitlines(keepends=True)
    file.write_text(line.replace('"to": "1"', '"to": "3"') + "".join(rest))
    before = read_decisions(home, model).records
    assert roll_back(client, home, model, "wrong on new cameras") == ("2", "1")
    after = read_decisions(home, model)
    assert not after.damage
    assert after.records[:-1] == before
    assert (after.records[-1].action, after.records[-1].to) == ("rollback", "1")
    assert file.with_name(f"{file.name}.damaged-0").is_file()
    assert f"{file} is damaged (line 1: its checksum" in caplog.text
