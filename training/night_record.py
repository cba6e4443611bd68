"""The record of a night: of one run of `retrain`, whatever became of it."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from training.record_base import Record

# What became of a night. "first" is the promotion of a first champion, "refused" an error in settings or recipe,
# "held" a dataset that waits for a person.
NightOutcome = Literal[
    "running", "promoted", "first", "kept", "unchanged", "refused", "held", "failed", "interrupted"
]


class NightRecord(Record):
    """One run of `retrain`, from the moment at which its model was known. Empty or None: not known, or none."""

    night: str = Field(description="unique name; names of later nights sort behind")
    home: str = Field(description="identity of the home")
    recipe: str = Field(description="name of the recipe")
    model: str = Field(description="name of the registered model")
    began_at: datetime = Field(description="time in UTC")
    seconds: float | None = Field(None, description="wall time")
    outcome: NightOutcome = "running"
    cause: str = Field("", description="why, in one sentence; of an error its message")
    exit_status: int = Field(0, description="exit status of the command")
    run_key: str = ""
    dataset_fingerprint: str = ""
    train_rows: int | None = None
    test_rows: int | None = None
    data_changes: str = Field("", description="differences from the champion's dataset, in words")
    metric: str = Field("", description="name of the metric")
    value: float | None = Field(None, description="the candidate's value of the metric on the test rows")
    champion_value: float | None = Field(None, description="the champion's value on the same rows")
    version: str = Field("", description="number of the version in the registry")
    flow_run_id: str = Field("", description="id of Prefect's flow run")
    mlflow_run_id: str = Field("", description="id of the run of the training in MLflow")
    report: str = Field("", description="path of the report page")
