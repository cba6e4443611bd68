"""Descriptions of a registered model and its versions, shown in MLflow: purpose, data, scores and verdict."""

from typing import TYPE_CHECKING

from tasks.registry.aliases import Alias
from tasks.report_page.wording import reason, sentence
from tasks.run_words import words_of
from training.data.sources.wording import counted
from training.plan import RunPlan
from training.problems import problem_named, problem_of
from training.recipe import Recipe
from training.records import DatasetVersion, Evaluation, TrainedModel, Verdict

if TYPE_CHECKING:
    from mlflow import MlflowClient

_BEGINNING = "Trained on "


def model_description(recipe: Recipe, version: DatasetVersion) -> str:
    """Description of a registered model: what all its versions have in common."""
    summary = f"{sentence(recipe.summary)} " if recipe.summary else ""
    return (
        f"{summary}{_purpose(version)}.\n\n"
        f"Retrained by Evergreen from the recipe {recipe.name}. The alias `champion` names the version in service."
    )


def _purpose(version: DatasetVersion) -> str:
    """What the model does, as a clause: from which inputs it predicts what."""
    return problem_named(version.problem).purpose(_inputs(version), version)


def _inputs(version: DatasetVersion) -> str:
    if version.text is not None:
        return f"text of at most {version.text.length} tokens"
    if version.table is not None and not version.has_images:
        return f"{counted(len(version.table.raw.columns), 'column')} of a table"
    channels, height, width = version.image_shape
    colour = {1: "grey ", 3: "colour "}.get(channels, "")
    return f"{colour}images of {width} x {height} pixels"


def version_description(
    plan: RunPlan,
    version: DatasetVersion,
    trained: TrainedModel,
    evaluation: Evaluation | None = None,
    verdict: Verdict | None = None,
    alias: Alias = "none",
) -> str:
    """Description of one version: its data and, once judged, its scores with the interval and the verdict."""
    words = words_of(plan)
    text = (
        f"{_BEGINNING}{version.rows('train'):,} {words.row}s of {version.name} ({version.source_origin}), "
        f"{counted(len(trained.history), words.trainer.epoch)}, {words.kept(trained.selected_epoch)}."
    )
    if plan.initial is not None:
        text += f" Fine-tuned from {plan.initial.words}."
    if plan.data_changes:
        text += f" Data since the run before: {plan.data_changes}."
    if trained.threshold is not None:
        text += f" It answers {version.classes[1]!r} from a probability of {trained.threshold:.4g} on."
    if evaluation is None or verdict is None:
        return f"{text}\n\nNot judged yet."
    score = evaluation.candidate
    outcome = "Promoted to champion" if alias == "champion" and verdict.promote else "Kept, not promoted"
    scores = problem_of(score).in_words(score, f"{evaluation.rows:,} test {words.row}s")
    return f"{text}\n\n{scores}.\n\n{outcome}: {reason(verdict, alias)}."


def describe_model(client: "MlflowClient", plan: RunPlan, recipe: Recipe, version: DatasetVersion) -> None:
    """Set the description of the registered model, unless it has one."""
    if not client.get_registered_model(plan.model).description:
        client.update_registered_model(plan.model, description=model_description(recipe, version))


def describe_version(client: "MlflowClient", model: str, number: str, text: str) -> None:
    """Update the version's description, unless a person has replaced it."""
    now = client.get_model_version(model, number).description
    if now != text and (not now or now.startswith(_BEGINNING)):
        client.update_model_version(model, number, description=text)
