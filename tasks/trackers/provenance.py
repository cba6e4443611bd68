"""Provenance of an MLflow run: its dataset, the commit of its recipe, the user, and its Prefect flow run."""

import getpass
import json
import math
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.initial_weights import InitialWeights
from training.plan import RunPlan
from training.printable import escape_markdown, printable
from training.records import ColumnKind, DatasetVersion, Split

if TYPE_CHECKING:
    from mlflow.entities import DatasetInput

PARENT_TAG = "evergreen.parent"  # parent of a fine-tuned model: models:/name/version, or a path
PARENT_WEIGHTS_TAG = "evergreen.parent_weights"  # digest of the parent's weights
_VERSION = "models:/"  # beginning of MLflow's address of a version
FLOW_RUN_TAG = "evergreen.flow_run"
_NOTE_TAG = "mlflow.note.content"  # MLflow shows this tag as the run's description
_GIT_TIMEOUT_S = 10.0
_LONGEST_SCHEMA = 1_048_575  # characters; MLflow refuses a dataset with a longer schema
# MLflow's names of the types of a table's columns
_TYPES: dict[ColumnKind, str] = {
    "number": "double",
    "category": "string",
    "boolean": "boolean",
    "date": "datetime",
    "text": "string",
}


def origin_tags(plan: RunPlan) -> dict[str, str]:
    """Tags for a run: user, recipe file, commit of the recipe's Git repository, and a fine-tuned model's parent."""
    recipe = Path(plan.recipe.path)
    tags = {"mlflow.source.name": str(recipe), "mlflow.source.type": "LOCAL", **parent_tags(plan)}
    if user := user_name():
        tags["mlflow.user"] = user
    if commit := _git(recipe, "rev-parse", "HEAD"):
        tags["mlflow.source.git.commit"] = commit
        # Only files that are part of the run key: changes of other files have no effect.
        changed = _git(recipe, "status", "--porcelain", "--", *plan.recipe.files)
        tags["mlflow.source.git.dirty"] = str(bool(changed)).lower()
    return tags


def parent_tags(plan: RunPlan) -> dict[str, str]:
    """Tags with the version or file whose weights the run starts from; empty for a run from new weights."""
    if plan.initial is None:
        return {}
    initial = plan.initial
    parent = f"{_VERSION}{initial.model}/{initial.version}" if initial.version else initial.reference
    return {PARENT_TAG: parent, PARENT_WEIGHTS_TAG: initial.digest}


def parent_in(tags: Mapping[str, str]) -> InitialWeights | None:
    """The initial weights that the tags of :func:`parent_tags` describe; None without such tags."""
    if PARENT_WEIGHTS_TAG not in tags:
        return None
    parent, digest = tags.get(PARENT_TAG, ""), tags[PARENT_WEIGHTS_TAG]
    if not parent.startswith(_VERSION):
        return InitialWeights(reference=parent, digest=digest)
    model, _, version = parent.removeprefix(_VERSION).rpartition("/")
    return InitialWeights(reference=f"version:{version}", model=model, version=version, digest=digest)


def flow_run_tags() -> dict[str, str]:
    """Tags that link an MLflow run to the current Prefect flow run; empty outside of a flow run."""
    from prefect.runtime import flow_run

    if not flow_run.id:
        return {}
    name, address = printable(escape_markdown(str(flow_run.name))), str(flow_run.ui_url)
    # A server that the command started for itself has no web page, and has ended when a user opens the run.
    shown = f"[{name}]({address})" if address.startswith("http") else f"{name} ({flow_run.id})"
    return {FLOW_RUN_TAG: str(flow_run.id), _NOTE_TAG: f"Retraining by the Prefect flow run {shown}."}


def dataset_inputs(plan: RunPlan, version: DatasetVersion) -> "list[DatasetInput]":
    """Train and test rows as inputs of an MLflow run, described from the dataset's record without reading rows."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    kind, source = _source(plan, version)
    contexts: dict[Split, str] = {"train": "training", "test": "test"}
    return [
        DatasetInput(
            Dataset(
                name=f"{version.name} {split}",
                digest=version.fingerprint[:32],  # MLflow takes 36 characters at most
                source_type=kind,
                source=json.dumps(source),
                schema=_schema_text(version),
                profile=json.dumps(_profile(version, split)),
            ),
            [InputTag("mlflow.data.context", context)],
        )
        for split, context in contexts.items()
    ]


def _source(plan: RunPlan, version: DatasetVersion) -> tuple[str, dict[str, str]]:
    """MLflow's source type and the source's location: its URL, or its files on this machine."""
    origin = version.source_origin
    if origin.startswith(("http://", "https://")):
        return "http", {"url": origin}
    path = Path(origin) if Path(origin).is_absolute() else Path(plan.files.root)
    return "local", {"uri": path.as_uri()}


def _schema_text(version: DatasetVersion) -> str:
    """The schema as JSON, with only the first columns of a table that has too many for MLflow."""
    schema = _schema(version)
    while len(text := json.dumps(schema)) > _LONGEST_SCHEMA:
        schema = {name: columns[: len(columns) // 2] for name, columns in schema.items()}
    return text


def _schema(version: DatasetVersion) -> dict[str, Any]:
    """The dataset's columns in the form that MLflow's dataset page shows: image and label, or those of the table."""
    from mlflow.types import ColSpec, DataType, Schema

    columns: list[Any] = [ColSpec(DataType.binary, "image"), ColSpec(DataType.integer, "label")]
    if version.has_images and version.table is not None:
        columns[1] = ColSpec(DataType.double, version.table.target)
    elif version.table is not None:
        features = version.table.raw.columns
        columns = [
            ColSpec(DataType[_TYPES[column.kind]], column.name, required=not column.missing)
            for column in features
        ]
        target = DataType.string if version.classes else DataType.double
        columns.append(ColSpec(target, version.table.target))
    return {"mlflow_colspec": Schema(columns).to_dict()}


def _profile(version: DatasetVersion, split: Split) -> dict[str, Any]:
    """Rows and values of a split; of a table, also the values that are missing in the train split, by column."""
    rows = version.rows(split)
    profile: dict[str, Any] = {"num_rows": rows, "num_elements": rows * math.prod(version.shape)}
    if version.table is None or version.has_images:
        channels, height, width = version.image_shape
        profile["image"] = f"uint8, {channels} x {height} x {width} (channels, height, width)"
    elif split == "train":
        profile["missing_values"] = {
            column.name: column.missing for column in version.table.raw.columns if column.missing
        }
    if version.classes:
        profile["rows_by_class"] = dict(zip(version.classes, version.label_counts[split], strict=True))
    return profile


def user_name() -> str | None:
    """Name of the user who runs this process, if there is one."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container may run under a user id without a name
        return None


def _git(recipe: Path, *arguments: str) -> str | None:
    """Output of git in the repository that tracks the recipe; None when there is no such repository or no git."""

    def ask(*command: str) -> str:
        return subprocess.run(
            ["git", "-C", str(recipe.parent), *command],
            capture_output=True,
            text=True,
            check=True,
            timeout=_GIT_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        ).stdout.strip()

    try:
        ask("ls-files", "--error-unmatch", "--", str(recipe))
        return ask(*arguments)
    except (OSError, subprocess.SubprocessError):
        return None
