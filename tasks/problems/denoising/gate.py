"""How the gate compares two denoising models: by their errors in the noise of the test images, image by image."""

import numpy as np
import pyarrow as pa

from tasks.gate.measures import Array
from tasks.gate.outcomes import Side
from tasks.problems.mean_loss import MeanLoss
from tasks.problems.regression.gate import NumberOutcomes
from training.records import Evaluation, Rule
from training.settings.schema import GateSettings

MEASURE = "noise_error"


def _errors(classes: Array, errors: Array) -> Array:
    """`predictions.parquet` has the errors under each row's own class."""
    del classes
    return errors


MEASURES = {MEASURE: MeanLoss("noise error", "noise error", "image", "{:.4g}".format, _errors)}


def outcomes(rows: pa.Table, reference: Side) -> NumberOutcomes:
    """See :class:`tasks.gate.outcomes.GateOfProblem`. The tests are those of a regression's errors."""
    ours, theirs = (rows[name].to_numpy() for name in ("candidate", reference))
    digests = rows["digest"].to_numpy().astype(np.uint64)
    return NumberOutcomes(digests, rows["label"].to_numpy().astype(np.float64), ours, theirs, MEASURE)


def further_rules(evaluation: Evaluation, settings: GateSettings) -> tuple[Rule, ...]:
    """No rules: a denoising model has only the rules that all problems share."""
    del evaluation, settings
    return ()
