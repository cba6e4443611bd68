"""The score that the gate compares with `gate.floor`: the problem's, or one of the metric of `gate.metric`."""

from training.problems import problem_of
from training.problems.row_metrics import ROW_METRICS, RowMetric
from training.records import Evaluation


def floor_value(evaluation: Evaluation) -> float:
    """The candidate's score, at most 1; of a mean loss, the share that the model removes of the baseline's loss."""
    metric, values = _row_metric(evaluation), evaluation.metric_values
    if metric is None:
        return problem_of(evaluation.candidate).floor_value(evaluation.candidate)
    ours, nothing = values["candidate"].value, values["baseline"].value
    if metric.is_share:
        return ours
    return 1 - ours / nothing if nothing else float(not ours)


def floor_text(evaluation: Evaluation, value: float) -> tuple[str, str]:
    """Name of that score, and `value` as text."""
    metric = _row_metric(evaluation)
    if metric is None:
        return problem_of(evaluation.candidate).floor_text(value)
    if metric.is_share:
        return metric.word, metric.spell(value)
    return f"share removed of the {metric.word} of {evaluation.baseline}", f"{value:.4f}"


def scores_text(evaluation: Evaluation) -> str:
    """Text that compares the score of candidate and champion: "accuracy 93.15 % against 85.48 %"."""
    assert evaluation.champion is not None
    metric, values = _row_metric(evaluation), evaluation.metric_values
    if metric is None:
        return problem_of(evaluation.champion).against(evaluation.candidate, evaluation.champion)
    ours, theirs = (metric.spell(values[name].value) for name in ("candidate", "champion"))
    return f"{metric.word} {ours} against {theirs}"


def _row_metric(evaluation: Evaluation) -> RowMetric | None:
    """The metric, unless it is the problem's own."""
    if evaluation.metric is None or not evaluation.metric_values:
        return None
    return ROW_METRICS[evaluation.metric.name]
