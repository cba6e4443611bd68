"""Descriptions of a registered model and its versions, shown in MLflow: purpose, data, accuracy and verdict."""

from typing import TYPE_CHECKING

from tasks.registry.aliases import Alias
from tasks.report_page.wording import percent, reason, sentence
from training.plan import RunPlan
from training.recipe import Recipe
from training.records import DatasetVersion, Evaluation, TrainedModel, Verdict

if TYPE_CHECKING:
    from mlflow import MlflowClient

_FEW = 20  # most class names that the description lists
_BEGINNING = "Trained on "


def model_description(recipe: Recipe, version: DatasetVersion) -> str:
    """Description of a registered model: what all its versions have in common."""
    channels, height, width = version.shape
    colour = {1: "grey ", 3: "colour "}.get(channels, "")
    names = f": {', '.join(version.classes)}" if len(version.classes) <= _FEW else ""
    return (
        f"{sentence(recipe.summary)} Classifies {colour}images of {width} x {height} pixels into "
        f"{len(version.classes)} classes{names}.\n\n"
        f"Retrained by Evergreen from the recipe {recipe.name}. The alias `champion` names the version in service."
    )


def version_description(
    version: DatasetVersion,
    trained: TrainedModel,
    evaluation: Evaluation | None = None,
    verdict: Verdict | None = None,
    alias: Alias = "none",
) -> str:
    """Description of one version: its data and, once judged, its accuracy with the interval and the verdict."""
    epochs = len(trained.history)
    text = (
        f"{_BEGINNING}{version.rows('train'):,} images of {version.name} ({version.source_origin}), "
        f"{epochs} epoch{'s' * (epochs != 1)}, weights of epoch {trained.selected_epoch}."
    )
    if evaluation is None or verdict is None:
        return f"{text}\n\nNot judged yet."
    score = evaluation.candidate
    outcome = "Promoted to champion" if alias == "champion" else "Kept, not promoted"
    return (
        f"{text}\n\n"
        f"{percent(score.accuracy)} accurate on {evaluation.rows:,} test images "
        f"({percent(score.confidence, 0)} confidence: {percent(score.low)} to {percent(score.high)}).\n\n"
        f"{outcome}: {reason(verdict)}."
    )


def describe_model(client: "MlflowClient", plan: RunPlan, recipe: Recipe, version: DatasetVersion) -> None:
    """Set the description of the registered model, unless it has one."""
    if not client.get_registered_model(plan.model).description:
        client.update_registered_model(plan.model, description=model_description(recipe, version))


def describe_version(client: "MlflowClient", model: str, number: str, text: str) -> None:
    """Update the version's description, unless a person has replaced it."""
    now = client.get_model_version(model, number).description
    if now != text and (not now or now.startswith(_BEGINNING)):
        client.update_model_version(model, number, description=text)
