"""Homes that share a registry, in every order of their calls: crashes and expired leases lose no promotion."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cache, partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from interleavings import Client, Execution, Explored, Limits, Time, acting, explore, new_token
from mlflow.store.entities import PagedList
from registry_in_memory import RegistryInMemory
from tracked import planned

import flows.retrain
import tasks.cleanup.recipe_runs
import tasks.cleanup.retention
import tasks.comparison
import tasks.gate.verdict
import tasks.register
import tasks.registry.decisions
import tasks.registry.lock
import tasks.registry.reign
import tasks.registry.rollback
import tasks.rollback
from flows.stopwatch import Stopwatch
from tasks.problems.classification.gate import ClassOutcomes
from tasks.registry.aliases import CHAMPION, PREVIOUS, ROLLED_BACK_TAG, WEIGHTS_TAG
from tasks.registry.lock import Lease, LockLostError
from tasks.registry.rollback_mark import ROLLBACK_TAG
from tasks.trackers.mlflow_run import RUN_KEY_TAG
from training.errors import EvergreenError, SettingError, TransientError
from training.plan import RunPlan
from training.problems.probabilities import paired, score
from training.records import (
    DatasetVersion,
    EpochMetrics,
    Evaluation,
    Goodput,
    Release,
    TrainedModel,
)
from training.storage.paths import Home

MODEL = "digits"
_TRIES = 3
_TURNS = count(1)


class HomeOfRuns(NamedTuple):
    """A home with a trained candidate, whose weights digest begins with its strength: 0 to 9."""

    home: Home
    plan: RunPlan
    version: DatasetVersion
    trained: TrainedModel


def trained_model(plan: RunPlan, strength: int) -> TrainedModel:
    epoch = EpochMetrics(
        epoch=1, step=1, train_loss=1, train_score=1, validation_loss=1, validation_score=1,
        learning_rate=1, images_per_s=1, rows=1, checksum=1,
    )  # fmt: skip
    return TrainedModel(
        run_key=plan.run_key, weights="", weights_digest=f"{strength}{plan.run_key[1:]}", selected_epoch=1, steps=1,
        world_size=1, device="cpu", history=(epoch,), seconds=1, goodput=Goodput(total_s=1, parts={}),
    )  # fmt: skip


@cache
def comparison(is_better: bool) -> Evaluation:
    """An evaluation in which the better model gets all 40 rows right, and the other model none."""
    labels = np.zeros(40, np.int64)
    right, wrong = np.tile([1.0, 0.0], (40, 1)), np.tile([0.0, 1.0], (40, 1))
    pair = (right, wrong) if is_better else (wrong, right)
    scores = [score(labels, probabilities, ("zero", "one"), 0.95, 1.0, 1.0) for probabilities in pair]
    predictions = f"{'better' if is_better else 'worse'}/predictions.parquet"
    return Evaluation(
        rows=40, candidate=scores[0], champion=scores[1], champion_version=None,
        **paired(labels, *pair).model_dump(), predictions=predictions,
    )  # fmt: skip


@cache
def outcomes(_problem: str, predictions: Path, *_: object) -> ClassOutcomes:
    """The rows of :func:`comparison`."""
    ours, rows = predictions.parent.name == "better", np.arange(40)
    right, loss = np.ones(40, bool), np.full(40, 0.1)
    candidate, reference = (right, ~right) if ours else (~right, right)
    losses = (loss, 10 * loss) if ours else (10 * loss, loss)
    return ClassOutcomes(rows.astype(np.uint64), 0 * rows, candidate, reference, *losses)


@pytest.fixture(scope="module")
def homes() -> Iterator[list[HomeOfRuns]]:
    """Three homes on an in-memory disk. The third home has the same run key as the first."""
    folder = Path(
        tempfile.mkdtemp(prefix="evergreen-tests-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
    )
    plan, version = planned(Home(folder / "0"), uri="sqlite:///shared")
    other = plan.model_copy(update={"run_key": plan.run_key[::-1]})
    made = []
    for number, run_plan in enumerate((plan, other, plan)):
        home = Home(folder / str(number))
        (home.root / "decisions").mkdir(parents=True, exist_ok=True)
        _ = home.identity
        moved = run_plan.model_copy(update={"home": str(home.root)})
        made.append(HomeOfRuns(home, moved, version, trained_model(moved, (5, 7, 5)[number])))
    yield made
    shutil.rmtree(folder)


def registry(with_third: HomeOfRuns | None = None) -> RegistryInMemory:
    """A registry whose champion is version 2 and previous champion version 1; both are weaker than any candidate.

    Version 3 exists if `with_third` is given. It has no alias; a run of the third home created it, with the same run
    key and weights as a run of the first home.
    """
    model_registry = RegistryInMemory()
    model_registry.create_registered_model(MODEL)
    for number, alias in ((1, PREVIOUS), (2, CHAMPION)):
        model_registry.create_model_version(MODEL, tags={RUN_KEY_TAG: str(number), WEIGHTS_TAG: f"{number}"})
        model_registry.set_registered_model_alias(MODEL, alias, str(number))
    if with_third:
        tags = {RUN_KEY_TAG: with_third.plan.run_key, WEIGHTS_TAG: with_third.trained.weights_digest}
        model_registry.create_model_version(MODEL, tags=tags)
    return model_registry


class RunsToo(Client):
    """Answers calls that no other program can observe at once, without the scheduler."""

    def set_model_version_tag(self, name: str, version: str, key: str, value: str) -> None:
        if key in ("evergreen.verdict", "evergreen.why"):
            acting().execution.registry.set_model_version_tag(name, version, key, value)
        else:
            self.__getattr__("set_model_version_tag")(name, version, key, value)

    def log_dict(self, *_: Any) -> None:
        pass

    def get_run(self, run_id: str) -> SimpleNamespace:
        return SimpleNamespace(
            info=SimpleNamespace(run_id=run_id, start_time=0, experiment_id="0", status="FINISHED")
        )

    def search_logged_models(self, *_: Any, **__: Any) -> PagedList[Any]:
        return PagedList([], None)

    search_experiments = search_runs = search_logged_models

    def delete_run(self, *_: Any) -> None:
        pass


def evaluated(plan: RunPlan, version: DatasetVersion, trained: TrainedModel) -> Evaluation:
    """Like the step `evaluate`, but without predictions on disk; `comparison_now` is the real function."""
    now = tasks.comparison.comparison_now(RunsToo(), plan, version, trained)
    acting().execution.compared.setdefault(plan.home, []).insert(0, now)
    if now.champion is None:
        return comparison(True).model_copy(update={"champion": None})
    weights = acting().execution.model.versions[int(now.champion)][WEIGHTS_TAG]
    return comparison(trained.weights_digest > weights).model_copy(update={"champion_version": now.champion})


@pytest.fixture(autouse=True)
def _explored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the registry's own code, with training, scoring and export of models replaced, and also time."""
    client = RunsToo()
    monkeypatch.setattr(tasks.register, "connect_patiently", lambda _: client)
    monkeypatch.setattr(
        tasks.comparison, "_complete_comparisons", lambda plan: acting().execution.compared.get(plan.home, [])
    )
    monkeypatch.setattr(flows.retrain, "evaluate", evaluated)
    for module in (tasks.cleanup.retention, tasks.cleanup.recipe_runs):
        monkeypatch.setattr(module, "connect_once", lambda _: client)
    monkeypatch.setattr(tasks.rollback, "connect", lambda *_: client)
    monkeypatch.setattr(flows.retrain, "register", register_patiently)
    monkeypatch.setattr(tasks.registry.reign, "read_outcomes", outcomes)
    # It takes most of the time, but changes no decision.
    monkeypatch.setattr(tasks.gate.verdict, "_choice", lambda *_: None)
    unneeded = ("reload_once", "check_same", "metadata_of", "format_name", "log_final")
    for name in (*unneeded, "announce_digests", "adopt_digests"):
        monkeypatch.setattr(tasks.register, name, lambda *_: None)
    for name in (
        "record_training_rows",
        "link_logged_model",
        "describe_model",
        "describe_version",
        "digest_file",
    ):
        monkeypatch.setattr(tasks.register, name, lambda *_: "")
    monkeypatch.setattr(tasks.register, "version_description", lambda *_: "")
    # It changes the description alone.
    monkeypatch.setattr(tasks.register, "is_judged_elsewhere", lambda *_: False)
    monkeypatch.setattr(tasks.register, "open_run", lambda *_, **__: "run")
    monkeypatch.setattr(tasks.register, "open_columns", lambda *_: SimpleNamespace(inputs=np.zeros(4)))
    monkeypatch.setattr(tasks.register, "load_version", lambda *_: SimpleNamespace(predict=None))
    logged = SimpleNamespace(
        log_model=lambda *_: "models:/m",
        MODEL_FILE=Path("data/model.pt2"),
        WEIGHTS_FILE=Path("extra_files/weights.safetensors"),
    )
    monkeypatch.setattr(tasks.register, "inspection_of", lambda _: SimpleNamespace(predictor=lambda *_: None))
    monkeypatch.setattr(tasks.register, "format_of", lambda _: logged)
    monkeypatch.setattr(tasks.register, "digest_of_logged", lambda *_: "")
    monkeypatch.setattr(tasks.registry.rollback, "load_version", lambda *_: None)
    monkeypatch.setattr(tasks.registry.lock, "time", Time())
    monkeypatch.setattr(tasks.registry.lock, "_new_token", new_token)
    monkeypatch.setattr(tasks.registry.lock, "_kept_beating", lambda _: nullcontext())
    monkeypatch.setattr(tasks.registry.lock, "_WAIT_S", float("inf"))


def register_patiently(plan: RunPlan, version: Any, trained: TrainedModel, evaluation: Evaluation) -> Release:
    """Register again after a lost lock, as Prefect's retries do."""
    acting().compared_with = evaluation.champion_version
    for _ in range(_TRIES):
        try:
            return tasks.register.register.fn(plan, version, trained, evaluation)
        except LockLostError:
            pass
    raise AssertionError("the lock was lost again and again")


def retraining(home_of_runs: HomeOfRuns) -> Release:
    return flows.retrain.compare_and_register(
        home_of_runs.plan, home_of_runs.version, home_of_runs.trained, Stopwatch()
    )[1]


def rollback(home_of_runs: HomeOfRuns) -> tuple[str, str] | EvergreenError:
    try:
        return tasks.rollback.rollback.fn(str(home_of_runs.home.root), MODEL, "by hand", "sqlite:///shared")
    except (LockLostError, SettingError) as error:
        return error


def deletion(home_of_runs: HomeOfRuns) -> None:
    """What `evergreen gc --versions` does with an old run: it deletes version 3, which that run created."""
    paths = home_of_runs.plan.paths
    release = Release.model_construct(
        model=MODEL, version="3", mlflow_run_id="run", run_key=home_of_runs.plan.run_key
    )
    run = tasks.cleanup.recipe_runs.RecipeRun(paths, home_of_runs.plan, release, 0.0)
    if not tasks.cleanup.recipe_runs.in_service(run, set()):
        for _, remove in tasks.cleanup.retention._version(home_of_runs.plan.recipe.name, run):
            with suppress(TransientError):
                remove()


@contextmanager
def without_lock(client: Any, home: Home, model: str) -> Iterator[Lease]:
    """A lock that excludes only processes of the same home, as before leases existed."""
    lease = Lease(client, home, model, next(_TURNS), "")
    object.__setattr__(lease, "check", lambda: None)
    yield lease


Action = Callable[[HomeOfRuns], Any]


def explored(homes: list[HomeOfRuns], actions: list[tuple[Action, int]], limits: Limits) -> Explored:
    """Explore all orders of the calls of `actions`; each action runs in the home with the given number."""
    start = registry(homes[2] if (deletion, 2) in actions else None)

    def begin() -> Execution:
        for home_of_runs in homes:
            tasks.registry.decisions.read_decisions(home_of_runs.home, MODEL).file.unlink(missing_ok=True)
        return Execution(start, [partial(action, homes[number]) for action, number in actions], limits)

    actor_homes = [homes[number].home for _, number in actions]
    return explore(begin, lambda execution: check(execution, homes, actor_homes))


def check(execution: Execution, homes: list[HomeOfRuns], actor_homes: list[Home]) -> None:
    """Check the invariants; `actor_homes` are the homes of the actors."""
    model = execution.model
    assert CHAMPION in model.aliases
    assert set(model.aliases.values()) <= set(model.versions), "an alias points to a version that is gone"
    check_comparisons(execution)
    check_rollbacks(execution, actor_homes)
    turns = [move.turn for move in execution.moves]
    assert turns == sorted(set(turns)), f"turns do not grow: {turns}"
    if not execution.choices():
        check_end(execution, homes)


def check_comparisons(execution: Execution) -> None:
    for move in execution.moves:
        if move.compared_with is None:
            assert ROLLED_BACK_TAG in move.left
        else:
            assert move.before == move.compared_with, f"replaced without comparison: {move}"


def check_rollbacks(execution: Execution, actor_homes: list[Home]) -> None:
    """A command that repeats an interrupted rollback finishes it, and does not put back the version that was left."""
    for move in execution.moves:
        assert not move.mark.startswith(actor_homes[move.actor].identity), f"undid a rollback: {move}"
    if not execution.choices() and not execution.lapses:
        assert execution.model.aliases[CHAMPION] != execution.model.aliases[PREVIOUS], "a half-done rollback"
        marks = [tags.get(ROLLBACK_TAG, "") for tags in execution.model.versions.values()]
        done = [
            actor_homes[n] for n, actor in enumerate(execution.actors) if isinstance(actor.outcome, tuple)
        ]
        assert not any(mark.startswith(home.identity) for mark in marks for home in done), "a mark stays"


def check_end(execution: Execution, homes: list[HomeOfRuns]) -> None:
    model = execution.model
    assert all(actor.over for actor in execution.actors), "nobody goes on"
    runs = [(tags[RUN_KEY_TAG], tags[WEIGHTS_TAG]) for tags in model.versions.values()]
    assert len(runs) == len(set(runs)), "a run was registered twice"
    for number, actor in enumerate(execution.actors):
        if isinstance(actor.outcome, Release) and actor.outcome.alias == "champion":
            mine = [move.after for move in execution.moves if move.actor == number]
            assert actor.outcome.version in mine, "said to be promoted, and was not"
    decided = {move for home_of_runs in homes for move in decisions(home_of_runs.home)}
    moved = {(move.before, move.after) for move in execution.moves}
    assert decided <= moved
    if not execution.crashes and not any(isinstance(actor.outcome, Exception) for actor in execution.actors):
        assert decided == moved, "a move is not on record"


def decisions(home: Home) -> list[tuple[str, str]]:
    records = tasks.registry.decisions.read_decisions(home, MODEL).undamaged()
    return [(str(decision.before), decision.to) for decision in records if decision.to is not None]


TWO_RETRAININGS = [(retraining, 0), (retraining, 1)]
AND_ROLLBACK = [(retraining, 0), (rollback, 1)]
ONE_ROLLBACK = [(rollback, 1)]
TWO_ROLLBACKS = [(rollback, 0), (rollback, 1)]
AND_DELETION = [(retraining, 0), (deletion, 2)]
ROLLBACK_AND_DELETION = [(rollback, 0), (deletion, 2)]
FAST = [
    (TWO_RETRAININGS, Limits(preemptions=1)),
    (TWO_RETRAININGS, Limits(crashes=1, preemptions=0)),
    (TWO_RETRAININGS, Limits(lapses=1, preemptions=1)),
    (AND_ROLLBACK, Limits(preemptions=1)),
    (AND_ROLLBACK, Limits(crashes=1, preemptions=0)),
    (ONE_ROLLBACK, Limits(crashes=2)),
    (TWO_ROLLBACKS, Limits(crashes=1, preemptions=0)),
    (TWO_ROLLBACKS, Limits(lapses=1, preemptions=1)),
    (AND_DELETION, Limits(preemptions=1)),
    (AND_DELETION, Limits(lapses=1, preemptions=1)),
]
SLOW = [
    (ONE_ROLLBACK, Limits(crashes=3)),
    (TWO_RETRAININGS, Limits()),
    (TWO_RETRAININGS, Limits(crashes=1, lapses=1, preemptions=1)),
    (TWO_RETRAININGS, Limits(lapses=2, preemptions=2)),
    (AND_ROLLBACK, Limits()),
    (AND_ROLLBACK, Limits(crashes=1, lapses=1, preemptions=1)),
    (TWO_ROLLBACKS, Limits()),
    (TWO_ROLLBACKS, Limits(crashes=1, lapses=1, preemptions=1)),
    (AND_DELETION, Limits()),
    (AND_DELETION, Limits(crashes=1, lapses=1, preemptions=1)),
    (ROLLBACK_AND_DELETION, Limits()),
]
Case = tuple[list[tuple[Action, int]], Limits]


def named(case: Case) -> str:
    actions, limits = case
    some = [f"{number} {name}" for name, number in zip(limits._fields, limits, strict=True) if number]
    return " ".join(["-and-".join(action.__name__ for action, _ in actions), *some])


@pytest.mark.extended
@pytest.mark.parametrize("case", FAST, ids=named)
def test_no_promotion_is_lost_in_any_order(homes: list[HomeOfRuns], case: Case) -> None:
    assert explored(homes, *case).orders > 1


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("case", SLOW, ids=named)
def test_no_promotion_is_lost_in_more_orders(homes: list[HomeOfRuns], case: Case) -> None:
    assert explored(homes, *case).orders > 1


def test_without_the_lock_a_promotion_is_lost(
    homes: list[HomeOfRuns], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exploration finds the error that it exists for: a lock that other homes can't see is not enough."""
    monkeypatch.setattr(tasks.register, "registry_lock", without_lock)
    with pytest.raises(AssertionError, match="replaced without comparison"):
        explored(homes, TWO_RETRAININGS, Limits(preemptions=2))


def test_a_write_after_a_lost_lease_is_detected_by_the_turns(
    homes: list[HomeOfRuns], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only order that the lock can't exclude: the alias moves back to a version with an earlier turn."""
    monkeypatch.setattr("test_interleavings.check_comparisons", lambda _: None)
    with pytest.raises(AssertionError, match="turns do not grow"):
        explored(homes, TWO_RETRAININGS, Limits(lapses=1, lapses_before_writes=True, preemptions=1))
