"""In: a plan and its dataset version. Out: nothing, or the error because of which the result can't be used.

Whether the model can be compared and registered would otherwise be known only after hours of training; it is checked
while the workers start and run their first steps. Fails with SettingError when the champion learned another problem or
takes other inputs, when the MLflow experiment was deleted or when MLflow's server allows this account no writes, with
TrainingError when the model can't be exported, and with DataError when the champion's files are damaged.
"""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.checks.model_checks import check_comparable, check_same_transform
from tasks.model_formats.base import format_of
from tasks.registry.aliases import champion_of, version_tags
from tasks.registry.reign import anchor_of
from tasks.registry.safe_loading import TRANSFORM_TAG, check_registered, registered_inputs
from tasks.step import step
from tasks.trackers.mlflow_run import check_experiment, check_version, connect_once, open_run
from tasks.trackers.mlflow_store import NoMlflowError
from training.errors import DataError, SettingError, StopRequestedError, classify
from training.plan import RunPlan
from training.problems.gate_metrics import metric_for
from training.recipe import reload_once
from training.records import DatasetVersion
from training.storage.files import write_text
from training.storage.paths import Home
from training.supervision.launch import finished

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger("evergreen.preflight")

_LOOK_S = 0.5


@step("preflight")
def preflight(plan: RunPlan, version: DatasetVersion) -> None:
    """Refuse a run whose model could not be compared or registered; checks nothing when training is finished already.

    An MLflow server that is unavailable does not stop the training: the checks of the experiment and of the champion's
    inputs are skipped with a warning.
    """
    if finished(plan.paths, plan.run_key) is not None:
        return
    check_format(plan, version)
    metric_for(plan.settings.gate, version, None)  # refuses one that these data do not have
    try:
        client = connect_once(plan)
        check_experiment(client, plan)
        number = champion_of(client, plan.model)
        if number is not None:
            check_version_comparable(client, plan, version, number)
            check_anchor(client, plan, version, number)
        if plan.settings.tracking.uri is not None:
            open_run(client, plan)  # a server may allow reads, and refuse this account's writes
            check_version(client, plan)
    except Exception as error:
        known = classify(error)
        if isinstance(known, NoMlflowError):
            raise SettingError(str(known)) from error
        if known is None or not known.transient:
            raise
        log.warning("%s Training begins; its results are sent when MLflow is back.", known)


@contextmanager
def checked_alongside(plan: RunPlan, version: DatasetVersion) -> Iterator[None]:
    """Run :func:`preflight` in a thread while the block trains, or before the block when it trains in this process.

    The check takes some 8 CPU seconds of imports and tracing, which would delay the first training step. When the
    check fails, it asks the workers to stop, and its error is raised after the workers have stopped.
    """
    # Training in this process: a concurrent check would draw from the training's random number generators.
    if not plan.settings.scaling.num_workers:
        preflight(plan, version)
        yield
        return
    failure: list[Exception] = []
    over = threading.Event()

    def check() -> None:
        try:
            preflight(plan, version)
        except Exception as error:
            failure.append(error)
            while not over.wait(_LOOK_S):  # repeatedly: an attempt that begins removes the request
                write_text(plan.paths.stop, "preflight")

    # In a copy of the context, as in Prefect's own task runner, so that the task run belongs to this flow run.
    checking = threading.Thread(target=copy_context().run, args=(check,), name="evergreen-preflight")
    checking.start()
    stopped: Exception | None = None
    try:
        yield
    except Exception as error:
        stopped = error
    finally:
        _end(checking, over)
        if failure:
            plan.paths.stop.unlink(missing_ok=True)
    if failure:  # the requested stop is a consequence of the check's error, not its cause
        raise failure[0] from (None if isinstance(stopped, StopRequestedError) else stopped)
    if stopped is not None:
        raise stopped


def _end(checking: threading.Thread, over: threading.Event) -> None:
    """Wait until a running check has finished: a process that ends while a thread imports torch may crash."""
    over.set()
    checking.join()


def check_version_comparable(
    client: "MlflowClient", plan: RunPlan, version: DatasetVersion, number: str
) -> None:
    """Check that the candidate can be compared with version `number`.

    Raises :class:`SettingError` when that version takes other inputs, and :class:`DataError` for damaged files.
    """
    tags = version_tags(client, plan.model, number)
    check_same_transform(plan.model, number, tags.get(TRANSFORM_TAG, ""), version.transform)
    if different := check_shape(plan, version, number):
        log.warning("%s", different)
    check_registered(Home(Path(plan.home)), plan.model, number)


def check_anchor(client: "MlflowClient", plan: RunPlan, version: DatasetVersion, champion: str) -> None:
    """With another `gate.policy` than better, check that the candidate can be compared with the champion's anchor.

    Raises :class:`DataError`, with the remedy, when the anchor's files are damaged.
    """
    policy = plan.settings.gate.policy
    if policy == "better":
        return
    anchor = anchor_of(client, plan.model, champion)
    if anchor is None:
        return
    try:
        check_version_comparable(client, plan, version, anchor)
    except DataError as error:
        raise DataError(
            f"model {plan.model} version {anchor} is the anchor, with which gate.policy={policy} compares candidates: "
            f"{error} Or delete version {anchor} in MLflow: candidates are then compared with the champion instead."
        ) from error


def check_shape(plan: RunPlan, version: DatasetVersion, number: str) -> str:
    """The result of :func:`tasks.checks.model_checks.check_comparable` for a version.

    Also raises :class:`DataError` when the champion's files can't be read.
    """
    return check_comparable(plan.model, number, registered_inputs(plan.model, number), version)


def check_format(plan: RunPlan, version: DatasetVersion) -> None:
    """Check that a model of the run's copy of the recipe could be registered, where its format asks for a check."""
    check = getattr(format_of(plan.settings), "check_untrained", None)
    if check is not None:
        check(plan, lambda: reload_once(plan.recipe, plan.paths.recipe), version)
