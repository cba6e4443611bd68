"""How the gate compares two models by `gate.metric`: by one number a row (:mod:`training.problems.row_metrics`).

`predictions.parquet` has the numbers of each model, in the column of its name with the ending :data:`ENDING`. The tests
are those of a regression's errors; a metric up to 1 counts as the error 1 - metric.
"""

import numpy as np
import pyarrow as pa

from tasks.gate.measures import Array
from tasks.gate.outcomes import Side
from tasks.problems.mean_loss import MeanLoss
from tasks.problems.regression.gate import NumberOutcomes
from training.problems.row_metrics import ENDING, ROW_METRICS, RowMetric, rarest
from training.records import GateMetric

# With fewer rows of the rarest class, a year of joint comparisons by auc promotes equal models too often
# (benchmarks/gate.md): these few rows decide, and the normal distribution does not describe them.
FEW_ROWS = 200
_PREFIX = "row_"  # of the names of measures


def outcomes(rows: pa.Table, reference: Side, metric: GateMetric) -> NumberOutcomes:
    """The outcomes of the compared rows of `predictions.parquet` by this metric."""
    is_share = ROW_METRICS[metric.name].is_share
    ours, theirs = (_errors(rows[name + ENDING].to_numpy(), is_share) for name in ("candidate", reference))
    return NumberOutcomes(
        digests=rows["digest"].to_numpy().astype(np.uint64),
        labels=rows["label"].to_numpy(),
        candidate_error=ours,
        reference_error=theirs,
        measure=f"{_PREFIX}{metric.name}",
        in_points=is_share,
        few_rows=ROW_METRICS[metric.name].by_class and rarest(rows["label"].to_numpy()) < FEW_ROWS,
        about=metric.model_dump_json(exclude={"why"}),
    )


def _errors(numbers: Array, is_share: bool) -> Array:
    return 1 - numbers if is_share else numbers


def _measure(metric: RowMetric) -> MeanLoss:
    return MeanLoss(
        metric=metric.word,
        mean=metric.word,
        row="row",
        spelled=lambda error: metric.spell(1 - error if metric.is_share else error),
        losses=lambda _, numbers: _errors(numbers, metric.is_share),
        is_share=metric.is_share,
        ending=ENDING,
    )


MEASURES = {f"{_PREFIX}{name}": _measure(metric) for name, metric in ROW_METRICS.items()}
