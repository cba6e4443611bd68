"""Identity of the comparison that a candidate's scores belong to; only an identical comparison reuses the scores."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.registry.aliases import METRIC_TAG, WEIGHTS_TAG, champion_of, version_tags
from tasks.registry.reign import anchor_of
from tasks.trackers.mlflow_run import RUN_KEY_TAG
from training.plan import RunPlan
from training.problems.gate_metrics import metric_for
from training.records import (
    ALREADY_CHAMPION,
    DatasetVersion,
    Evaluation,
    GateMetric,
    Record,
    TrainedModel,
    Verdict,
)
from training.redaction import redact
from training.storage.files import digest_file, digest_json
from training.storage.paths import RunPaths
from training.storage.record_files import find_record, read_record, record_text

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger("evergreen.evaluate")

COMPARISON, EVALUATION, PREDICTIONS = "comparison.json", "evaluation.json", "predictions.parquet"
_FORMAT = 3  # 3: predictions.parquet has the model that has learned nothing, where there is no champion


class Comparison(Record):
    """What identifies a comparison of candidate and champion.

    It includes the digests of their weights: a version number alone is ambiguous, because a registry can be replaced
    or restored.
    """

    store: str
    model: str
    candidate: str
    champion: str | None
    champion_weights: str | None
    anchor: str | None = None
    anchor_weights: str | None = None
    confidence: float
    metric: GateMetric | None = None
    format: int = 1

    def folder(self, plan: RunPlan) -> Path:
        """Folder in which the scores of this comparison are kept."""
        # Why this metric was chosen changes when the candidate itself becomes the champion.
        digest = digest_json(self.model_dump(exclude={"metric": {"why"}}))
        return plan.paths.evaluation / f"against-{self.champion or 'none'}-{digest[:8]}"


def comparison_now(
    client: "MlflowClient", plan: RunPlan, version: DatasetVersion, trained: TrainedModel
) -> Comparison:
    """The comparison of the candidate with the current champion, by the gate's metric.

    If the candidate is the champion already, because an earlier attempt promoted the candidate and then crashed, the
    comparison is the recorded one with the champion that the candidate replaced. Without a record, because another home
    promoted the same model, or because the run's folder was removed, the candidate is compared with no other model.
    """
    gate, number = plan.settings.gate, champion_of(client, plan.model)
    tags = {} if number is None else version_tags(client, plan.model, number)
    alone = Comparison(
        store=redact(plan.settings.tracking.uri) if plan.settings.tracking.uri else "embedded",
        model=plan.model,
        candidate=trained.weights_digest,
        champion=None,
        champion_weights=None,
        confidence=gate.confidence,
        metric=metric_for(gate, version, kept_metric(tags)),
        format=_FORMAT,
    )
    if number is None:
        return alone
    if (tags.get(RUN_KEY_TAG), tags.get(WEIGHTS_TAG)) == (plan.run_key, trained.weights_digest):
        return next((made for made in _complete_comparisons(plan) if _same_candidate(made, alone)), alone)
    update = {"champion": number, "champion_weights": tags.get(WEIGHTS_TAG)}
    if gate.policy != "better" and (anchor := anchor_of(client, plan.model, number)):
        weights = version_tags(client, plan.model, anchor).get(WEIGHTS_TAG)
        update |= {"anchor": anchor, "anchor_weights": weights}
    return alone.model_copy(update=update)


def kept_metric(tags: dict[str, str]) -> GateMetric | None:
    """The metric by which a version was judged, from its tags; None without a valid tag."""
    try:
        return GateMetric.model_validate_json(tags[METRIC_TAG]) if METRIC_TAG in tags else None
    except ValueError:
        log.warning("tag %s is damaged, ignored", METRIC_TAG)
        return None


def as_champion_already(verdict: Verdict) -> Verdict:
    """`verdict` with the summary for a candidate that is the champion already, so that nothing is promoted."""
    return verdict.model_copy(update={"summary": f"{ALREADY_CHAMPION}: {verdict.rules[0].explanation}"})


def _same_candidate(comparison: Comparison, other: Comparison) -> bool:
    fields = {
        "store",
        "model",
        "candidate",
        "confidence",
        "format",
    }  # the metric may be kept from the candidate itself
    return comparison.model_dump(include=fields) == other.model_dump(include=fields)


def _complete_comparisons(plan: RunPlan) -> Iterator[Comparison]:
    """Comparisons with complete scores, newest first."""
    folders = [folder for folder in comparison_folders(plan.paths) if (folder / COMPARISON).is_file()]
    for folder in sorted(folders, key=lambda path: (path / COMPARISON).stat().st_mtime_ns, reverse=True):
        if find_evaluation(folder) is not None:
            yield read_record(folder / COMPARISON, Comparison, owner_of(folder))


def comparison_folders(run: RunPaths) -> list[Path]:
    """Folders of a run's comparisons, without the damaged folders that were set aside."""
    return sorted(folder for folder in run.evaluation.glob("against-*") if ".damaged-" not in folder.name)


def owner_of(folder: Path) -> str:
    """The `owner` of the records in a comparison's folder: the names of the run's folder and of this folder."""
    return f"{folder.parents[1].name}/{folder.name}"


def write_comparison(folder: Path, aside: Path, comparison: Comparison, evaluation: Evaluation) -> None:
    """Write the records of the comparison and its scores to `aside`, which will be renamed to `folder`."""
    for name, record in ((COMPARISON, comparison), (EVALUATION, evaluation)):
        (aside / name).write_text(record_text(name, record, owner_of(folder)))


def find_evaluation(folder: Path) -> Evaluation | None:
    """The scores in a comparison's folder; None when there are none, or when a file is damaged (logs a warning)."""
    made = find_record(folder / EVALUATION, Evaluation, owner_of(folder))
    if made is None or find_record(folder / COMPARISON, Comparison, owner_of(folder)) is None:
        return None
    file = folder / PREDICTIONS
    if not file.is_file():
        log.warning("%s is missing", file)
        return None
    if made.predictions_digest not in ("", digest_file(file)):
        log.warning("%s is damaged: its digest differs from that in %s", file, EVALUATION)
        return None
    return made.model_copy(update={"predictions": str(file)})
