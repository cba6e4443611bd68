"""The headline of a verdict: one sentence for people who do not read statistics; the rules have the statistics."""

from tasks.gate.floor import floor_text, floor_value, scores_text
from tasks.gate.measures import measure_of
from training.records import Evaluation, Look, Rule, Verdict


def decision_sentence(verdict: Verdict, evaluation: Evaluation) -> str:
    """What was decided about the candidate and the main reason, without a full stop: "Kept version 3: ...".

    The reason is that of the first failed rule or, of a promotion, of the comparison that the candidate passed.
    """
    failed = next((rule for rule in verdict.rules if not rule.passed), None)
    name = f"version {evaluation.champion_version}" if evaluation.champion_version else "the champion"
    if evaluation.champion is None:
        decided = "Promoted as first champion" if verdict.promote else "Not promoted"
    else:
        decided = f"Promoted over {name}" if verdict.promote else f"Kept {name}"
    reason = _refusal(failed, verdict) if failed else _promotion(verdict, evaluation)
    return f"{decided}: {reason}{_origin(evaluation)}"


def _refusal(failed: Rule, verdict: Verdict) -> str:
    look = _look_of(failed, verdict)
    if look is None:
        return _first_clause(failed.explanation)
    if look.baseline:
        return _against_baseline(look)
    change = measure_of(look).change(look)
    if look.question == "not_worse":
        return f"{change}, and may be worse than {_reference(look)} by more than gate.margin allows"
    if look.question == "unless_worse":
        return f"{change}, and {_reference(look)} is shown to be better"
    return f"{change}, which can be chance" if look.difference > 0 else change


def _promotion(verdict: Verdict, evaluation: Evaluation) -> str:
    looks = [look for rule in verdict.rules if (look := _look_of(rule, verdict)) is not None]
    if not looks:
        name, value = floor_text(evaluation, floor_value(evaluation))
        return f"{name} {value} on {evaluation.rows:,} rows"
    look = next((look for look in looks if not look.baseline), looks[0])
    if look.baseline:
        return _against_baseline(look)
    measure, name = measure_of(look), _reference(look)
    if look.question == "not_worse":
        return f"{measure.change(look)}, which is not worse than {name} by more than gate.margin allows"
    if look.question == "unless_worse":
        return f"{measure.change(look)}, not shown to be worse than {name}; {measure.at_worst(look)}"
    return f"{measure.change(look)}, more than chance explains{_corrected(verdict, evaluation)}"


def _corrected(verdict: Verdict, evaluation: Evaluation) -> str:
    """The gain that is left after correction: a measured gain alone is too high (:mod:`tasks.gate.selection`)."""
    if verdict.choice is None or evaluation.champion is None:
        return ""
    gain = f"{100 * verdict.choice.corrected_gain:.2f} points after correction for selection bias"
    return f": {scores_text(evaluation)}, a gain of {gain}"


def _against_baseline(look: Look) -> str:
    measure = measure_of(look)
    ours, theirs = map(measure.spell, measure.values(look))
    word = "better" if look.passed else "not shown to be better" if look.difference > 0 else "no better"
    return f"{measure.metric} {ours} on {look.rows:,} rows, {word} than {look.baseline} ({theirs})"


def _look_of(rule: Rule, verdict: Verdict) -> Look | None:
    """The comparison that a rule is about; None for a rule without one."""
    if rule.name == "baseline":
        return next(look for look in verdict.looks if look.baseline)
    found = (look for look in verdict.looks if look.question == rule.name and not look.baseline)
    return next(found, None)


def _reference(look: Look) -> str:
    return f"version {look.reference_version}" if look.reference_version else "the champion"


def _first_clause(explanation: str) -> str:
    return explanation.partition("; ")[0].partition(" (")[0]


def _origin(evaluation: Evaluation) -> str:
    """End of a fine-tuned candidate's sentence: the weights that its training started from."""
    if evaluation.initial is None:
        return ""
    parent = "this version" if evaluation.champion_is_parent else evaluation.initial.name
    return f"; the candidate was fine-tuned from {parent}"
