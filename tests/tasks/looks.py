"""Evaluations for tests of the gate, made up from counts, without predictions on disk."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.gate import asks_for_look, judge
from tasks.gate.look import Reference, take_look
from tasks.gate.reign import Reign
from tasks.problems.classification.gate import ClassOutcomes
from training.problems.probabilities import paired, score
from training.records import Evaluation

ALONE = {"error_control": "strict", "horizon": 1}  # one comparison may spend the whole error budget


def evaluate(labels, candidate, champion, classes=2, version="7"):
    """An evaluation of two models that predict the classes `candidate` and `champion` with probability 1."""
    labels, outputs = np.asarray(labels), np.eye(classes, dtype=np.float32)
    names = [f"class {k}" for k in range(classes)]

    def scored(predicted):
        return score(labels, outputs[predicted], names, 0.95, latency_ms=1.0, images_per_s=1000.0)

    theirs = None if champion is None else outputs[champion]
    return Evaluation(
        rows=len(labels),
        candidate=scored(candidate),
        champion=None if champion is None else scored(champion),
        champion_version=None if champion is None else version,
        predictions="predictions.parquet",
        **paired(labels, outputs[candidate], theirs).model_dump(),
    )


def from_counts(*by_class):
    """An evaluation from counts, per class, of rows that (both, only candidate, only champion, neither) got right."""
    classes = max(2, len(by_class))
    labels = np.repeat(np.arange(len(by_class)), [sum(counts) for counts in by_class])
    ours = np.concatenate([np.repeat([1, 1, 0, 0], counts) for counts in by_class]).astype(bool)
    theirs = np.concatenate([np.repeat([1, 0, 1, 0], counts) for counts in by_class]).astype(bool)
    wrong = (labels + 1) % classes
    return evaluate(labels, np.where(ours, labels, wrong), np.where(theirs, labels, wrong), classes)


def outcomes_of(evaluation):
    """Rows that match the paired counts; the true class has probability 0.9 where a model is right, else 0.1."""
    counts = [
        evaluation.both_right,
        evaluation.only_candidate_right,
        evaluation.only_champion_right,
        evaluation.both_wrong,
    ]
    return outcomes(np.repeat([1, 1, 0, 0], counts), np.repeat([1, 0, 1, 0], counts))


def outcomes(candidate, reference, digests=None):
    candidate, reference = np.asarray(candidate, bool), np.asarray(reference, bool)
    rows = len(candidate)
    return ClassOutcomes(
        digests=np.arange(rows, dtype=np.uint64) if digests is None else digests,
        labels=np.zeros(rows, np.int64),
        candidate=candidate,
        reference=reference,
        candidate_loss=-np.log(np.where(candidate, 0.9, 0.1)),
        reference_loss=-np.log(np.where(reference, 0.9, 0.1)),
    )


def judged(evaluation, settings):
    """The verdict on `evaluation` as the first look of a champion's reign."""
    looks = ()
    if asks_for_look(evaluation, settings):
        champion = Reference(evaluation.champion_version, "champion")
        looks = (
            take_look(settings.policy, "candidate", champion, outcomes_of(evaluation), Reign(), settings)[0],
        )
    return judge(evaluation, settings, looks)


def kept_on_disk(evaluation, path, digests=None):
    """Write predictions that match the counts, as `evaluate` does; returns the evaluation with their path."""
    rows = outcomes_of(evaluation)
    columns = {
        "label": rows.labels,
        "digest": rows.digests if digests is None else digests,
        "compared": np.ones(len(rows), bool),
        "candidate": np.where(rows.candidate, 0, 1),
        "candidate_probability": np.exp(-rows.candidate_loss).astype(np.float32),
        "champion": np.where(rows.reference, 0, 1),
        "champion_probability": np.exp(-rows.reference_loss).astype(np.float32),
    }
    pq.write_table(pa.table(columns), path)
    return evaluation.model_copy(update={"predictions": str(path)})
