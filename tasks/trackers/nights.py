"""The records of nights in MLflow: a small run for each night, in an experiment of the model's nights.

So every home that uses the same store sees all nights of a model, also those that ended before a training had a run,
and `evergreen gc` leaves them.
"""

import json
import sqlite3
from typing import TYPE_CHECKING

from tasks.trackers.embedded_store import opened, store_file
from tasks.trackers.mlflow_run import LONGEST_REASON, experiment_named
from tasks.trackers.paged_search import all_pages
from training.night_record import NightOutcome, NightRecord
from training.storage.paths import Home

if TYPE_CHECKING:
    from mlflow import MlflowClient

NIGHT_TAG = "evergreen.night"
CAUSE_TAG = "evergreen.cause"
_RECORD_TAG = "evergreen.night_record"
_LONGEST_CAUSE, _LONGEST_CHANGES = (
    2000,
    1000,
)  # characters; MLflow allows some 5,000 in the tag with the record
_STATUS: dict[NightOutcome, str] = {"refused": "FAILED", "failed": "FAILED", "interrupted": "KILLED"}
_IN_STORE = (
    "select record.value from tags record join runs on runs.run_uuid = record.run_uuid "
    "join experiments on experiments.experiment_id = runs.experiment_id "
    f"where record.key = '{_RECORD_TAG}' and experiments.name = ? and runs.lifecycle_stage = 'active'"
)


def experiment_of_nights(model: str) -> str:
    """Name of the experiment with the nights of a model."""
    return f"{model}-nights"


def record_night(client: "MlflowClient", home: Home, uri: str | None, night: NightRecord) -> None:
    """Record a night that has ended as a run of MLflow; a night that MLflow has already gets no second run.

    `uri` is the setting `tracking.uri`. Raises MLflow's errors, such as for a deleted experiment.
    """
    from mlflow.entities import Metric

    experiment_id = experiment_named(client, home, uri, experiment_of_nights(night.model))
    began = int(night.began_at.timestamp() * 1000)
    ended = began + int(1000 * (night.seconds or 0))
    wanted = f"tags.`{NIGHT_TAG}` = '{night.night}'"
    if runs := client.search_runs([experiment_id], wanted):
        run_id = runs[0].info.run_id
    else:
        made = client.create_run(experiment_id, began, _tags(night), run_name=_name(night))
        run_id = made.info.run_id
    numbers = {night.metric: night.value, f"champion_{night.metric}": night.champion_value}
    numbers["seconds"] = night.seconds
    points = [Metric(name, value, ended, 0) for name, value in numbers.items() if value is not None]
    client.log_batch(run_id, metrics=points)
    client.set_terminated(run_id, _STATUS.get(night.outcome, "FINISHED"), ended)


def nights_in_mlflow(client: "MlflowClient", model: str) -> list[NightRecord]:
    """All nights of a model that MLflow has, of all homes."""
    experiment = client.get_experiment_by_name(experiment_of_nights(model))
    if experiment is None:
        return []
    runs = all_pages(client.search_runs, [experiment.experiment_id])
    return _readable([run.data.tags.get(_RECORD_TAG, "") for run in runs])


def nights_in_embedded_store(home: Home, model: str) -> list[NightRecord]:
    """As :func:`nights_in_mlflow` for the store embedded in the home, read without importing MLflow.

    Empty when the store can't be read: the home's files have the nights as well.
    """
    if not store_file(home).is_file():
        return []
    try:
        with opened(home) as store:
            return _readable([text for (text,) in store.execute(_IN_STORE, (experiment_of_nights(model),))])
    except sqlite3.Error:
        return []


def _name(night: NightRecord) -> str:
    return f"{night.began_at:%Y-%m-%d %H:%M} {night.outcome}"


def _tags(night: NightRecord) -> dict[str, str]:
    """Tags of a night's run: the columns that MLflow's page shows, and the whole record."""
    shortened = {"cause": night.cause[:_LONGEST_CAUSE], "data_changes": night.data_changes[:_LONGEST_CHANGES]}
    record = night.model_copy(update=shortened)
    return {
        NIGHT_TAG: night.night,
        "evergreen.outcome": night.outcome,
        CAUSE_TAG: night.cause[:LONGEST_REASON],
        "evergreen.version": night.version,
        _RECORD_TAG: json.dumps(record.model_dump(mode="json", exclude_defaults=True)),
    }


def _readable(texts: list[str]) -> list[NightRecord]:
    nights = []
    for text in texts:
        try:
            nights.append(NightRecord.model_validate_json(text))
        except ValueError:  # changed by hand, or written by another version
            continue
    return nights
