"""MLflow: one run a run key, each metric point once, and nothing of the user's own MLflow state touched."""

import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.embedded_store import check_not_moved
from training.errors import EvergreenError, ResourceError, StopRequestedError, TransientError, classify
from training.metrics import MetricsFile, Point
from training.overrides import describe
from training.paths import Home
from training.plan import RunPlan
from training.records import DatasetVersion

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger("evergreen.tracking")

RUN_KEY_TAG = "evergreen.run_key"
HOME_TAG = "evergreen.home"  # tells runs of one installation from others' in a shared store
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_ENVIRONMENT = {
    "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",  # a model from the registry must not run code
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",  # by default a dead server is waited for over four minutes
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_SKIP_PIP_REQUIREMENTS_CHECK": "true",
    "GIT_PYTHON_REFRESH": "quiet",
}


def connect(uri: str | None, home: Home) -> "MlflowClient":
    """A client of the tracking store at `uri`, or of the one embedded under `home`.

    Raises :class:`ResourceError` when the embedded store can't be opened, :class:`TransientError` when a server
    does not answer.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import mlflow
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    logging.getLogger("alembic").setLevel(logging.WARNING)
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    place = uri or home.mlflow_uri
    mlflow.set_tracking_uri(place)
    mlflow.set_registry_uri(place)
    try:
        client = mlflow.MlflowClient(tracking_uri=place, registry_uri=place)
        client.search_experiments(max_results=1)
    except (MlflowException, SQLAlchemyError) as error:
        raise _unreachable(place, error) from error
    if uri is None:
        check_not_moved(home)
    return client


def _unreachable(place: str, error: Exception) -> EvergreenError:
    """Why the store at `place` can't be used, and what to do."""
    reason = str(getattr(error, "message", error)).partition("\n")[0]
    if not place.startswith("sqlite"):
        return TransientError(f"tracking.uri {place}: MLflow does not answer ({reason})")
    if "database is locked" in str(error):
        return TransientError(
            f"MLflow store {place}: another process holds it ({reason}). Run the same command again."
        )
    return ResourceError(
        f"MLflow store {place}: {reason}. After an update of MLflow, `mlflow db upgrade {place}` brings it up to date; "
        "a damaged file has to be replaced by a backup."
    )


def connect_patiently(plan: RunPlan) -> "MlflowClient":
    """:func:`connect`, waiting `tracking.outage_s` for a server that is away.

    Raises :class:`TransientError` when it does not come back.
    """
    deadline = time.monotonic() + plan.settings.tracking.outage_s
    pause = _FIRST_PAUSE_S
    while True:
        try:
            return connect(plan.settings.tracking.uri, Home(Path(plan.home)))
        except TransientError as error:
            if time.monotonic() + pause > deadline:
                raise
            log.warning("%s; trying again in %.0f s", error, pause)
        time.sleep(pause)
        pause = min(_LONGEST_PAUSE_S, 2 * pause)


def open_run(client: "MlflowClient", plan: RunPlan) -> str:
    """Id of the MLflow run with this run key, made when there is none; it goes on where it stopped.

    The caller holds the recipe's run lock, so any other run of this recipe and home that is said to be running was
    killed; it is closed.
    """
    name = plan.settings.tracking.experiment or plan.recipe.name
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        place = None
        if not (plan.settings.tracking.uri or "").startswith("http"):
            # A bare database would put artifacts under the working directory; a server has a place of its own.
            place = (Home(Path(plan.home)).mlflow_artifacts / name).as_uri()
        experiment_id = client.create_experiment(name, artifact_location=place)
    else:
        experiment_id = experiment.experiment_id
    _close_killed(client, experiment_id, plan)
    found = client.search_runs([experiment_id], f"tags.`{RUN_KEY_TAG}` = '{plan.run_key}'", max_results=1)
    if found:
        run_id: str = found[0].info.run_id
        client.update_run(run_id, status="RUNNING")
        return run_id
    tags = {
        RUN_KEY_TAG: plan.run_key,
        "evergreen.recipe": plan.recipe.name,
        HOME_TAG: _home_digest(plan),
        "mlflow.source.name": "evergreen",
    }
    created = client.create_run(experiment_id, run_name=f"{plan.recipe.name}-{plan.run_key[:8]}", tags=tags)
    new_id: str = created.info.run_id
    return new_id


def record_inputs(client: "MlflowClient", run_id: str, plan: RunPlan, version: DatasetVersion) -> None:
    """Settings as parameters, the ingredients as a file, the dataset version as the run's input."""
    from mlflow.data.http_dataset_source import HTTPDatasetSource
    from mlflow.data.meta_dataset import MetaDataset
    from mlflow.entities import DatasetInput, InputTag, Param

    known = client.get_run(run_id).data.params
    params = [Param(name, str(value)) for name, value in describe(plan.settings).items() if name not in known]
    client.log_batch(run_id, params=params)
    client.log_dict(run_id, {"run_key": plan.run_key, "ingredients": plan.ingredients}, "ingredients.json")
    client.log_dict(run_id, version.model_dump(mode="json"), "dataset.json")
    source = HTTPDatasetSource(url=version.source_origin)
    described = MetaDataset(source, name=version.name, digest=version.fingerprint[:32])  # type: ignore[abstract]
    data = described._to_mlflow_entity()
    client.log_inputs(run_id, [DatasetInput(data, [InputTag("mlflow.data.context", "training")])])


def _close_killed(client: "MlflowClient", experiment_id: str, plan: RunPlan) -> None:
    """Give runs whose process is gone the status that it could not give them."""
    ours = (
        f"attributes.status = 'RUNNING' and tags.`evergreen.recipe` = '{plan.recipe.name}' "
        f"and tags.`{HOME_TAG}` = '{_home_digest(plan)}'"
    )
    for run in client.search_runs([experiment_id], ours):
        if run.data.tags.get(RUN_KEY_TAG) != plan.run_key:
            client.set_terminated(run.info.run_id, "KILLED")


def _home_digest(plan: RunPlan) -> str:
    return hashlib.sha256(plan.home.encode()).hexdigest()[:16]


def close_run(client: "MlflowClient", run_id: str, status: str) -> None:
    """Set the final status: FINISHED, FAILED or KILLED."""
    client.set_terminated(run_id, status)


@contextmanager
def failure_recorded(plan: RunPlan) -> Iterator[None]:
    """Give the MLflow run its final status when the block fails: FAILED for an error, KILLED for an interruption."""
    try:
        yield
    except BaseException as error:
        # What went wrong must reach the user whatever MLflow says; the next start closes a run that stays open.
        with suppress(Exception):
            client = connect(plan.settings.tracking.uri, Home(Path(plan.home)))
            run_id = open_run(client, plan)
            client.set_tag(run_id, "evergreen.error", f"{type(error).__name__}: {error}"[:500])
            stopped = isinstance(error, StopRequestedError) or not isinstance(error, Exception)
            close_run(client, run_id, "KILLED" if stopped else "FAILED")
        raise


@dataclass
class Publisher:
    """Reads new metric points while workers write them; hands them to listeners and, in batches, to MLflow.

    A point goes to MLflow once: what is there already is read first, and the timestamp is the point's own, so
    that a repeated batch is the same row. `begin` opens the run; while MLflow is away, it is called again and again.
    """

    begin: Callable[[], tuple["MlflowClient", str]]
    file: MetricsFile
    outage_s: float
    with_system_metrics: bool = False
    interval_s: float = 2.0
    _listeners: tuple[Callable[[Point], None], ...] = ()
    _stop: threading.Event = field(default_factory=threading.Event)
    _heard: set[tuple[int, str, float]] = field(default_factory=set)
    _sent: set[tuple[int, str]] = field(default_factory=set)
    _run: tuple["MlflowClient", str] | None = None
    _monitor: Any = None
    _next_try: float = 0.0
    _pause: float = 0.0

    @contextmanager
    def running(self, *listeners: Callable[[Point], None]) -> Iterator[None]:
        """Publish in the background; the rest is sent before the block is left.

        Raises :class:`TransientError` when MLflow does not take the rest within `outage_s`.
        """
        self._listeners = listeners
        # In a copy of the context: what a listener logs belongs to this task run in Prefect.
        run = copy_context().run
        thread = threading.Thread(target=run, args=(self._work,), name="evergreen-metrics", daemon=True)
        thread.start()
        try:
            yield
        except BaseException:
            self._end(thread)
            with suppress(Exception):  # the block's own error is what counts
                self._send(self.file.read())
            raise
        self._end(thread)
        self.flush()

    def flush(self) -> None:
        """Send what MLflow lacks. Raises :class:`TransientError` when it does not take it within `outage_s`."""
        deadline = time.monotonic() + self.outage_s
        pause = _FIRST_PAUSE_S
        while True:
            try:
                self._tell(self.file.read())
                return self._send(self.file.read())
            except Exception as error:
                known = classify(error)
                if known is None or not known.transient:
                    raise
                if time.monotonic() + pause > deadline:
                    raise TransientError(
                        f"MLflow took not all metrics ({known}). They are kept in {self.file.path}: "
                        "run the same command again."
                    ) from error
                log.warning("MLflow does not take metrics (%s); trying again in %.0f s", known, pause)
            time.sleep(pause)
            pause = min(_LONGEST_PAUSE_S, 2 * pause)

    def _end(self, thread: threading.Thread) -> None:
        self._stop.set()
        thread.join()
        if self._monitor is not None:
            self._monitor.finish()

    def _work(self) -> None:
        while True:
            points = self.file.read()
            self._tell(points)
            self._try_to_send(points)
            if self._stop.wait(self.interval_s):
                return

    def _tell(self, points: list[Point]) -> None:
        for point in points:
            name = (point.step, ",".join(point.values), point.at)  # a resume computes points again
            if name in self._heard:
                continue
            self._heard.add(name)
            for listener in self._listeners:
                try:
                    listener(point)
                except Exception as error:  # a display must not end a training
                    log.debug("a progress display failed: %s", error)

    def _try_to_send(self, points: list[Point]) -> None:
        """Send, or leave it for later: the file keeps every point until MLflow is back."""
        if time.monotonic() < self._next_try:
            return
        try:
            self._send(points)
        except Exception as error:
            if not self._pause:
                log.warning("MLflow does not take metrics now; they are kept and sent later (%s)", error)
            self._pause = min(_LONGEST_PAUSE_S, 2 * self._pause or _FIRST_PAUSE_S)
            self._next_try = time.monotonic() + self._pause
            return
        if self._pause:
            log.info("MLflow takes metrics again")
            self._pause = 0.0

    def _send(self, points: list[Point]) -> None:
        from mlflow.entities import Metric

        client, run_id = self._opened()
        new = [
            (point, name, value)
            for point in points
            for name, value in point.values.items()
            if (point.step, name) not in self._sent
        ]
        for start in range(0, len(new), 500):
            batch = new[start : start + 500]
            metrics = [Metric(name, value, int(point.at * 1000), point.step) for point, name, value in batch]
            client.log_batch(run_id, metrics=metrics)
            self._sent |= {(point.step, name) for point, name, _ in batch}

    def _opened(self) -> "tuple[MlflowClient, str]":
        if self._run is None:
            client, run_id = self.begin()
            self._sent = _already_there(client, run_id)
            self._run = client, run_id
            if self.with_system_metrics and not self._stop.is_set():
                self._monitor = _system_metrics(run_id)
        return self._run


def _system_metrics(run_id: str) -> Any:
    """Record CPU, memory, disk and GPU use of this machine with the run, until `finish()` is called."""
    from mlflow.system_metrics.system_metrics_monitor import SystemMetricsMonitor

    monitor = SystemMetricsMonitor(run_id, sampling_interval=2, samples_before_logging=5, resume_logging=True)
    monitor.start()
    return monitor


def _already_there(client: "MlflowClient", run_id: str) -> set[tuple[int, str]]:
    names = client.get_run(run_id).data.metrics
    ours = [name for name in names if not name.startswith("system/")]
    return {(metric.step, name) for name in ours for metric in client.get_metric_history(run_id, name)}


def log_final(client: "MlflowClient", run_id: str, metrics: dict[str, float], step: int, at_ms: int) -> None:
    """Final numbers, each once however often this is called for the same run."""
    from mlflow.entities import Metric

    known: dict[str, Any] = client.get_run(run_id).data.metrics
    client.log_batch(
        run_id, metrics=[Metric(n, v, at_ms, step) for n, v in metrics.items() if n not in known]
    )
