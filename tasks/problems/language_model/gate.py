"""How the gate compares two language models: by the negative log-likelihoods of the test texts, text by text."""

import numpy as np
import pyarrow as pa

from tasks.gate.outcomes import Side
from tasks.problems.language_model.measures import LOSS_PER_TOKEN, MEASURE, losses
from tasks.problems.regression.gate import NumberOutcomes
from training.records import Evaluation, Rule
from training.settings.schema import GateSettings

MEASURES = {MEASURE: LOSS_PER_TOKEN}


def outcomes(rows: pa.Table, reference: Side) -> NumberOutcomes:
    """See :class:`tasks.gate.outcomes.GateOfProblem`.

    A text's outcome is its negative log-likelihood / the mean number of tokens of a text: the mean over the texts is
    the loss per token. The tests are those of a regression's errors.
    """
    tokens = rows["label"].to_numpy()
    ours, theirs = (losses(tokens, rows[name].to_numpy()) for name in ("candidate", reference))
    return NumberOutcomes(rows["digest"].to_numpy().astype(np.uint64), tokens, ours, theirs, MEASURE)


def further_rules(evaluation: Evaluation, settings: GateSettings) -> tuple[Rule, ...]:
    """No rules: a language model has only the rules that all problems share."""
    del evaluation, settings
    return ()
