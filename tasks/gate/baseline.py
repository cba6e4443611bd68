"""The rule about a first champion: it must be shown to be better than a model that has learned nothing.

Such a model always answers the commonest class of the training rows, or the mean of their targets
(:meth:`training.problems.base.Problem.baseline`). It is compared as a champion would be, but by a single comparison,
which may use the whole level 1 - `gate.confidence`: without a champion, there is no reign.
"""

from tasks.gate.look import Reference, take_look
from tasks.gate.measures import measure_of
from tasks.gate.needed import obstacle
from tasks.gate.outcomes import Outcomes
from tasks.gate.reign import Reign
from tasks.gate.wording import p_value
from training.records import Evaluation, Look, Rule
from training.settings.schema import GateSettings

_ALONE = {"error_control": "strict", "horizon": 1}


def baseline_look(evaluation: Evaluation, weights: str, outcomes: Outcomes, settings: GateSettings) -> Look:
    """The comparison with the model that has learned nothing; `weights` is the digest of the candidate's weights."""
    reference = Reference(None, "baseline", baseline=evaluation.baseline)
    alone = settings.model_copy(update=_ALONE)
    return take_look("better", weights, reference, outcomes, Reign(), alone)[0]


def baseline_rule(look: Look) -> Rule:
    """The candidate is better than the model that has learned nothing; the explanation has both values."""
    measure = measure_of(look)
    ours, theirs = map(measure.spell, measure.values(look))
    word = "better" if look.passed else "not shown to be better" if look.difference > 0 else "no better"
    text = f"{measure.metric} {ours}, {word} than {look.baseline} ({theirs}): "
    text += f"{measure.compared(look)}, {p_value(look.p)}, at most {look.level:.2g} is needed"
    if not look.passed:
        text += f"{obstacle(look) or measure.would_need(look)}. gate.baseline=false switches this rule off"
    return Rule(name="baseline", passed=look.passed, value=look.p, limit=look.level, explanation=text)
