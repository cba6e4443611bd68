"""The rules of the gate, one function each: from an evaluation and looks to a :class:`Rule` with its numbers."""

from tasks.gate.floor import floor_text, floor_value
from tasks.gate.measures import measure_of
from tasks.gate.needed import level_is_reachable, obstacle
from tasks.gate.wording import p_value
from training.records import Evaluation, Look, Rule


def floor_rule(evaluation: Evaluation, floor: float) -> Rule:
    """The problem's score for `gate.floor` reaches `floor` on the compared rows.

    The explanation gives the number of rows left out.
    """
    rows, value = evaluation.rows, floor_value(evaluation)
    passed = value >= floor
    name, measured = floor_text(evaluation, value)
    text = (
        f"{name} {measured} on {rows:,} rows {'reaches' if passed else 'is below'} "
        f"the floor of {floor_text(evaluation, floor)[1]}"
    )
    if evaluation.metric_values and evaluation.metric is not None:
        text += f"; this metric decides, as {evaluation.metric.why}"
    if evaluation.left_out:
        text += f"; {evaluation.left_out:,} more test rows are left out, as "
        text += f"{_trained(evaluation)} was trained on them"
    if not evaluation.training_rows_known:
        text += f"; which rows {_trained(evaluation)} was trained on is not known"
    if evaluation.own_columns:
        text += f"; {evaluation.own_columns}"
    return Rule(name="floor", passed=passed, value=value, limit=floor, explanation=text)


def better_rule(look: Look) -> Rule:
    """The candidate is better by the look's measure."""
    value, limit = (look.statistic, look.boundary) if look.boundary is not None else (look.p, look.level)
    text = f"{measure_of(look).compared(look)}: {p_value(look.p)}, z = {look.statistic:.2f}; {_asked(look)}"
    if not look.passed:
        text += f": not shown to be better{obstacle(look) or measure_of(look).would_need(look)}"
    if round(look.reference_excess, 4):
        text += f". Version {look.reference_version} was promoted by its accuracy on these rows, which is therefore "
        text += f"about {100 * look.reference_excess:.2f} points too high (selection bias)"
    return Rule(name="better", passed=look.passed, value=value, limit=limit, explanation=text)


def not_worse_rule(look: Look) -> Rule:
    """The candidate is not worse than the reference by more than `gate.margin`; see the look's measure."""
    measure = measure_of(look)
    not_worse = measure.not_worse(look)
    remedy = "" if look.passed else obstacle(look) or not_worse.remedy
    text = f"{measure.compared(look)}: {not_worse.changed}; {_asked(look)}{remedy}"
    return Rule(
        name="not_worse", passed=look.passed, value=not_worse.value, limit=not_worse.limit, explanation=text
    )


def unless_worse_rule(look: Look) -> Rule:
    """The reference is not shown to be better than the candidate; says how much worse the candidate could be."""
    value, limit = (look.statistic, look.boundary) if look.boundary is not None else (look.p, look.level)
    measure, name = measure_of(look), f"version {look.reference_version}"
    text = (
        f"{measure.compared(look)}: {p_value(look.p)}, z = {look.statistic:.2f} in favour of the reference; "
    )
    shown = "is not shown to be better" if look.passed else "is shown to be better"
    if not look.passed and (blocked := obstacle(look)):
        shown = f"can't be shown to be better, whatever the result{blocked}"
    text += f"{_asked(look)}: {name} {shown}"
    text += f". With {100 * look.alpha:g} % error, the candidate is {measure.at_worst(look)}"
    return Rule(name="unless_worse", passed=look.passed, value=value, limit=limit, explanation=text)


def _trained(evaluation: Evaluation) -> str:
    """The versions and the file whose training rows are not compared on."""
    numbers = [number for number in (evaluation.champion_version, evaluation.anchor_version) if number]
    names = [f"version {' or '.join(numbers)}"] if numbers else []
    if evaluation.initial is not None and not evaluation.champion_is_parent:
        names.append(evaluation.initial.name)
    return " or ".join(names)


def _asked(look: Look) -> str:
    """Text that says what the look needs to pass."""
    ways = [f"z above {look.boundary:.2f}"] if look.boundary is not None else []
    # A level below the smallest possible p-value is named only if there is no boundary.
    if level_is_reachable(look) or (look.level > 0 and not ways):
        ways.append(f"p at most {look.level:.2g}")
    which = f"comparison {look.number:,} with version {look.reference_version}"
    return f"{which} needs {' or '.join(ways)}" if ways else f"{which} has no level left to spend"
