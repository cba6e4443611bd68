"""Compute the verdict from an evaluation and its looks; pure functions without side effects."""

from tasks.gate.baseline import baseline_rule
from tasks.gate.decision_sentence import decision_sentence
from tasks.gate.outcomes import gate_of
from tasks.gate.rules import better_rule, floor_rule, not_worse_rule
from tasks.gate.selection import choice_of
from training.problems import problem_of
from training.records import Choice, Evaluation, Look, Question, Rule, Verdict
from training.settings.schema import GateSettings


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
        policy=settings.model_dump(),
        looks=looks,
        choice=chosen,
    )
    return verdict.model_copy(update={"summary": decision_sentence(verdict, evaluation)})


def asks_for_look(evaluation: Evaluation, settings: GateSettings) -> bool:
    """Whether the candidate is compared with the champion; a candidate below the floor is not, and spends nothing."""
    return evaluation.champion is not None and _reaches_floor(evaluation, settings)


def _reaches_floor(evaluation: Evaluation, settings: GateSettings) -> bool:
    problem, candidate = problem_of(evaluation.candidate), evaluation.candidate
    return not problem.not_finite(candidate) and problem.floor_value(candidate) >= settings.floor


def asks_for_baseline(evaluation: Evaluation, settings: GateSettings) -> bool:
    """Whether the candidate is compared with the model that has learned nothing: without a champion, from the floor."""
    if evaluation.champion is not None or not evaluation.baseline or not settings.baseline:
        return False
    return _reaches_floor(evaluation, settings)


def same_policy(verdict: Verdict, settings: GateSettings) -> bool:
    """Whether `verdict` was computed with `settings`; if not, the evaluation must be judged again.

    A setting that the recorded verdict lacks is newer than the verdict: its default had the same effect.
    """
    recorded = GateSettings().model_dump() | verdict.policy
    return not has_first_rules(verdict) and recorded == settings.model_dump()


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
    floor = floor_rule(evaluation, settings.floor)
    if asks_for_baseline(evaluation, settings):
        if not looks:
            raise ValueError(f"the candidate was not compared with {evaluation.baseline}")
        return (floor, baseline_rule(looks[0]))
    if not asks_for_look(evaluation, settings):
        return (floor,)
    look = look_of(looks, settings.policy)
    if look is None:
        raise ValueError(f"no look was taken for policy {settings.policy}")
    compared = better_rule(look) if settings.policy == "better" else not_worse_rule(look)
    return (floor, compared, *gate_of(evaluation.candidate.problem).further_rules(evaluation, settings))


def look_of(looks: tuple[Look, ...], question: Question) -> Look | None:
    """The look for `question`, or None."""
    return next((look for look in looks if look.question == question), None)


def _choice(evaluation: Evaluation, looks: tuple[Look, ...]) -> Choice | None:
    """Correction for selection bias; None unless the candidate passed "better" by accuracy against the champion."""
    look = look_of(looks, "better")
    if look is None or look.baseline or not look.passed or look.measure != "accuracy":
        return None
    if look.reference_version != evaluation.champion_version:
        return None
    return choice_of(look, problem_of(evaluation.candidate).floor_value(evaluation.candidate))
