"""Compute the verdict from an evaluation and its looks; pure functions without side effects."""

from tasks.gate.baseline import baseline_rule
from tasks.gate.decision_sentence import decision_sentence
from tasks.gate.floor import floor_value
from tasks.gate.outcomes import gate_of
from tasks.gate.rules import better_rule, floor_rule, not_worse_rule, unless_worse_rule
from tasks.gate.selection import choice_of
from training.problems import problem_of
from training.records import Choice, Evaluation, Look, Question, Rule, Verdict
from training.settings.schema import GateSettings

_COMPARING = {"better": better_rule, "not_worse": not_worse_rule, "unless_worse": unless_worse_rule}


def judge(evaluation: Evaluation, settings: GateSettings, looks: tuple[Look, ...] = ()) -> Verdict:
    """Apply every rule to `evaluation`; the candidate is promoted when all rules pass.

    When :func:`asks_for_look` is true, `looks` must contain the look of the policy's question. Raises ValueError when
    that look is missing, and when the evaluation's counts contradict each other.
    """
    _check(evaluation)
    rules = _rules(evaluation, settings, looks)
    promote = all(rule.passed for rule in rules)
    chosen = _choice(evaluation, looks) if promote else None
    verdict = Verdict(
        promote=promote,
        summary="",
        rules=rules,
        champion_version=evaluation.champion_version,
        policy=settings.model_dump(mode="json"),
        looks=looks,
        metric=evaluation.metric,
        choice=chosen,
    )
    return verdict.model_copy(update={"summary": decision_sentence(verdict, evaluation)})


def asks_for_look(evaluation: Evaluation, settings: GateSettings) -> bool:
    """Whether the candidate is compared with the champion; a candidate below the floor is not, and spends nothing."""
    return evaluation.champion is not None and _reaches_floor(evaluation, settings)


def _reaches_floor(evaluation: Evaluation, settings: GateSettings) -> bool:
    broken = problem_of(evaluation.candidate).not_finite(evaluation.candidate)
    return not broken and floor_value(evaluation) >= settings.floor


def asks_for_baseline(evaluation: Evaluation, settings: GateSettings) -> bool:
    """Whether the candidate is compared with the model that has learned nothing, as it reaches the floor.

    A candidate that is better than a champion, or hardly worse, needs no such comparison. Under the policy
    "unless_worse" with few rows, a model that learned nothing is not shown to be worse than the champion either.
    """
    asked = evaluation.champion is None or settings.policy == "unless_worse"
    return asked and settings.baseline and bool(evaluation.baseline) and _reaches_floor(evaluation, settings)


def same_policy(verdict: Verdict, settings: GateSettings) -> bool:
    """Whether `verdict` was computed with `settings`; if not, the evaluation must be judged again.

    A setting that the recorded verdict lacks is newer than the verdict: its default had the same effect.
    """
    recorded = GateSettings().model_dump(mode="json") | verdict.policy
    return not has_first_rules(verdict) and recorded == settings.model_dump(mode="json")


def has_first_rules(verdict: Verdict) -> bool:
    """Whether an early version of Evergreen reached `verdict`, by other rules and texts than :func:`judge`."""
    return "error_control" not in verdict.policy


def has_earlier_words(verdict: Verdict) -> bool:
    """Whether an earlier version of Evergreen wrote the texts of `verdict`, by the same rules as :func:`judge`."""
    return "baseline" not in verdict.policy


def _check(evaluation: Evaluation) -> None:
    """Refuse counts that can't come from one comparison, since the verdict depends on them."""
    if evaluation.rows < 1:
        raise ValueError("evaluation.rows: no test rows, nothing to judge")
    if evaluation.champion is None:
        return
    if wrong := problem_of(evaluation.candidate).contradiction(evaluation):
        raise ValueError(f"evaluation: {wrong}")


def _rules(evaluation: Evaluation, settings: GateSettings, looks: tuple[Look, ...]) -> tuple[Rule, ...]:
    broken = problem_of(evaluation.candidate).not_finite(evaluation.candidate)
    if broken:  # a rule's numbers must be finite: JSON has no NaN
        text = f"the candidate's {', '.join(broken)} is NaN or infinite"
        return (Rule(name="finite", passed=False, value=float(len(broken)), limit=0.0, explanation=text),)
    rules = [floor_rule(evaluation, settings.floor)]
    if asks_for_baseline(evaluation, settings):
        rules.append(baseline_rule(_taken(next((look for look in looks if look.baseline), None), "baseline")))
    if asks_for_look(evaluation, settings):
        rules.append(_COMPARING[settings.policy](_taken(look_of(looks, settings.policy), settings.policy)))
        rules += gate_of(evaluation.candidate.problem).further_rules(evaluation, settings)
    return tuple(rules)


def _taken(look: Look | None, question: str) -> Look:
    if look is None:
        raise ValueError(f"no look was taken for {question}")
    return look


def look_of(looks: tuple[Look, ...], question: Question) -> Look | None:
    """The look for `question` at a version, or None."""
    return next((look for look in looks if look.question == question and not look.baseline), None)


def _choice(evaluation: Evaluation, looks: tuple[Look, ...]) -> Choice | None:
    """Correction for selection bias; None unless the candidate passed "better" by accuracy against the champion."""
    look = look_of(looks, "better")
    if look is None or not look.passed or look.measure != "accuracy":
        return None
    if look.reference_version != evaluation.champion_version:
        return None
    return choice_of(look, problem_of(evaluation.candidate).floor_value(evaluation.candidate))
