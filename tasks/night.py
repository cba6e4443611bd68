"""In: a run of `retrain` whose recipe is known. Out: its record, in the home and in MLflow, whatever becomes of it.

Never fails the run: a record that can't be written is logged. The record in the home comes first; MLflow gets all
nights that it lacks at the end of a night in which it answers.
"""

import logging
import secrets
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any

from tasks.report_page.wording import reason, was_promoted
from tasks.trackers.publisher import AFTER_ERROR_S, within
from training.errors import EXIT_BAD_SETTING, EXIT_BUG, EXIT_HELD, EXIT_INTERRUPTED, EXIT_TERMINATED, classify
from training.night_record import NightOutcome, NightRecord
from training.plan import RunPlan
from training.problems import problem_with_metric
from training.recipe import load
from training.records import DatasetVersion, Release
from training.redaction import redact
from training.settings.schema import TrackingSettings
from training.storage.night_files import keep_open, keep_sent, keep_unsent, open_nights, unsent_nights
from training.storage.paths import Home, home_to_write

log = logging.getLogger("evergreen.night")

_KILLED = "the process ended without a report, as by a kill or a power failure; the next run resumes the work"


class Night:
    """The record of a night under way: it grows with what becomes known, and is written again each time."""

    def __init__(self, home: Home, record: NightRecord, uri: str | None):
        self.record = record
        self._home, self._uri, self._began = home, uri, time.perf_counter()
        self._keep(keep_open)

    def planned(self, plan: RunPlan) -> None:
        """Note the run's identity."""
        self._learn(run_key=plan.run_key, dataset_fingerprint=plan.fingerprint, **_flow_run())
        self._keep(keep_open)

    def prepared(self, version: DatasetVersion, changes: str = "") -> None:
        """Note the dataset, and what changed in it since the champion's, in words."""
        self._learn(train_rows=version.rows("train"), test_rows=version.rows("test"), data_changes=changes)

    def ended(self, release: Release) -> Release:
        """Note the outcome; returns the release."""
        metric = problem_with_metric(release.metrics).metric
        outcome, cause = _outcome_of(release)
        self._learn(
            outcome=outcome,
            cause=cause,
            run_key=release.run_key,
            dataset_fingerprint=release.dataset_fingerprint,
            train_rows=release.train_rows,
            test_rows=release.test_rows,
            metric=metric,
            value=release.metrics[metric],
            champion_value=release.metrics.get(f"champion_{metric}"),
            version=release.version,
            mlflow_run_id=release.mlflow_run_id,
            report=release.report,
        )
        return release

    def failed(self, error: BaseException) -> None:
        """Note the error that ended the night."""
        outcome, cause, status = _outcome_of_error(error)
        self._learn(outcome=outcome, cause=cause, exit_status=status, **_flow_run())

    def close(self) -> None:
        """Write the final record in the home, and send it to MLflow unless a person waits for the process to end."""
        self._learn(seconds=round(time.perf_counter() - self._began, 3))
        self._keep(keep_unsent)
        if self.record.outcome == "interrupted" or (self._uri is None and "mlflow" not in sys.modules):
            return  # the next night sends it; this home's own store is not worth the import of MLflow
        within(AFTER_ERROR_S, lambda: _send(self._home, self.record.model, self._uri))

    def _learn(self, **facts: Any) -> None:
        self.record = self.record.model_copy(update=facts)

    def _keep(self, keep: Callable[[Home, NightRecord], None]) -> None:
        try:
            keep(self._home, self.record)
        except OSError as error:
            log.warning("the record of this night can't be written: %s", error)


_tonight: ContextVar[Night | None] = ContextVar("_tonight", default=None)


@contextmanager
def night_recorded(recipe: str, overrides: Mapping[str, Any]) -> Iterator[Night]:
    """Record what becomes of the block as one night; inside the block of another call, as part of that night.

    Raises :class:`SettingError` when there is no such recipe: then there is no model whose night it is.
    """
    if (around := _tonight.get()) is not None:
        yield around
        return
    night = _begun(recipe, overrides)
    token = _tonight.set(night)
    try:
        yield night
    except BaseException as error:
        night.failed(error)
        raise
    finally:
        _tonight.reset(token)
        night.close()


def note_plan(plan: RunPlan) -> None:
    """Note the run's identity in the night under way, if there is one."""
    if (night := _tonight.get()) is not None:
        night.planned(plan)


def note_dataset(version: DatasetVersion, changes: str = "") -> None:
    """Note the dataset in the night under way, if there is one, and its differences from the champion's in words."""
    if (night := _tonight.get()) is not None:
        night.prepared(version, changes)


def close_killed_nights(home: Home, recipe: str) -> None:
    """Record as interrupted the nights of a recipe whose processes ended without a record.

    The caller holds the recipe's run lock, so no other night of the recipe is under way.
    """
    tonight = _tonight.get()
    with suppress(OSError):
        for night in open_nights(home, recipe):
            if tonight is None or night.night != tonight.record.night:
                keep_unsent(home, as_killed(night))


def as_killed(night: NightRecord) -> NightRecord:
    """The record of a night whose process ended without a record."""
    return night.model_copy(update={"outcome": "interrupted", "cause": _KILLED})


def _begun(recipe: str, overrides: Mapping[str, Any]) -> Night:
    loaded, ref = load(recipe)
    tracking = _tracking(loaded.settings.tracking, overrides)
    home, now = home_to_write(for_run=False), datetime.now(UTC)
    record = NightRecord(
        night=f"{now:%Y%m%dT%H%M%S.%f}Z-{secrets.token_hex(4)}",
        home=home.identity,
        recipe=ref.name,
        model=tracking.model or ref.name,
        began_at=now,
        **_flow_run(),
    )
    return Night(home, record, tracking.uri)


def _tracking(own: TrackingSettings, overrides: Mapping[str, Any]) -> TrackingSettings:
    """The section `tracking` as far as it is valid: a night with another wrong setting is recorded, too."""
    section = overrides.get("tracking")
    if not isinstance(section, Mapping):
        return own
    valid = own
    for name, value in section.items():
        with suppress(ValueError):
            valid = TrackingSettings.model_validate(valid.model_dump() | {name: value})
    return valid


def _flow_run() -> dict[str, str]:
    """The id of Prefect's flow run, inside of one; Prefect is not imported for it."""
    if "prefect.runtime" not in sys.modules:
        return {}
    from prefect.runtime import flow_run

    return {"flow_run_id": str(flow_run.id)} if flow_run.id else {}


def _send(home: Home, model: str, uri: str | None) -> None:
    """Send the nights of a model that MLflow lacks; a failure leaves them for the next night."""
    from tasks.trackers.mlflow_store import connect
    from tasks.trackers.nights import record_night

    try:
        client = connect(uri, home)
        for night in unsent_nights(home, model):
            record_night(client, home, uri, night)
            keep_sent(home, night)
    except Exception as error:
        log.debug("MLflow does not take the record of this night: %s", error)


def _outcome_of(release: Release) -> tuple[NightOutcome, str]:
    alias = release.alias
    if release.reused:
        named = "" if alias == "none" else f", {alias}"
        return "unchanged", f"same data, recipe, code and settings as of version {release.version}{named}"
    why = reason(release.verdict, alias)
    if was_promoted(release):
        return ("promoted" if release.verdict.champion_version else "first"), why
    return ("unchanged" if alias == "champion" else "kept"), why


def _outcome_of_error(error: BaseException) -> tuple[NightOutcome, str, int]:
    """Outcome, cause and exit status."""
    if not isinstance(error, Exception):
        pressed = isinstance(error, KeyboardInterrupt)
        by = "Ctrl-C" if pressed else "a signal, as of a shutdown"
        status = EXIT_INTERRUPTED if pressed else EXIT_TERMINATED
        return "interrupted", f"ended by {by}; the next run resumes the work", status
    explained = classify(error)
    text = str(explained) if explained is not None else f"{type(error).__name__}: {error}"
    status = explained.exit_status if explained is not None else EXIT_BUG
    outcomes: dict[int, NightOutcome] = {
        EXIT_BAD_SETTING: "refused",
        EXIT_HELD: "held",
        EXIT_INTERRUPTED: "interrupted",
    }
    return outcomes.get(status, "failed"), " ".join(redact(text).split()), status
