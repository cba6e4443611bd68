"""The rules of the gate, one function each: from an evaluation and looks to a :class:`Rule` with its numbers."""

import math
from collections.abc import Sequence

from tasks.gate.look import alpha_of
from tasks.gate.needed import critical, error_needed, gain_needed, rows_needed
from tasks.gate.paired import difference_bound, holm, mcnemar
from training.data.sources.wording import counted
from training.problems import problem_of
from training.problems.regression import shown
from training.records import Evaluation, Look, Rule
from training.settings.schema import GateSettings


def floor_rule(evaluation: Evaluation, floor: float) -> Rule:
    """Accuracy, or R² of a regression, on the compared rows reaches `floor`.

    The explanation gives the number of rows left out.
    """
    problem, rows = problem_of(evaluation.candidate), evaluation.rows
    value = problem.floor_value(evaluation.candidate)
    passed = value >= floor
    name, measured = problem.floor_text(value)
    text = (
        f"{name} {measured} on {rows:,} rows {'reaches' if passed else 'is below'} "
        f"the floor of {problem.floor_text(floor)[1]}"
    )
    if evaluation.left_out:
        text += f"; {evaluation.left_out:,} more test rows are left out, as version "
        text += f"{_versions(evaluation)} was trained on them"
    if not evaluation.training_rows_known:
        text += f"; which rows version {_versions(evaluation)} was trained on is not known"
    return Rule(name="floor", passed=passed, value=value, limit=floor, explanation=text)


def better_rule(look: Look) -> Rule:
    """The candidate is more accurate, or has the lower log loss when neither model makes a mistake.

    Of a regression: the candidate's mean squared error is lower.
    """
    value, limit = (look.statistic, look.boundary) if look.boundary is not None else (look.p, look.level)
    text = f"{_compared(look)}: {_p(look.p)}, z = {look.statistic:.2f}; {_asked(look)}"
    if not look.passed:
        text += f": not shown to be better{_would_need(look)}"
    if round(look.reference_excess, 4):
        text += (
            f". Having been chosen on these rows adds some {100 * look.reference_excess:.2f} points to the "
        )
        text += f"accuracy of version {look.reference_version}"
    return Rule(name="better", passed=look.passed, value=value, limit=limit, explanation=text)


def not_worse_rule(look: Look) -> Rule:
    """The lower bound of the paired difference in accuracy, at the look's boundary, is above -`gate.margin`.

    Of a regression: see :func:`_error_not_worse`.
    """
    if look.measure == "squared_error":
        return _error_not_worse(look)
    z, margin, rows = critical(look), look.margin, look.rows
    bound = -1.0 if z is None else difference_bound(look.gained, look.lost, rows, z)
    text = (
        f"{_compared(look)}: accuracy changes by {points(look.gained - look.lost, rows)}, at worst by "
        f"{100 * bound:+.2f}; {-100 * margin:+.2f} allowed; {_asked(look)}"
    )
    if not look.passed:
        if z is not None and 0 < margin <= -difference_bound(0, 0, rows, z):
            text += f". {rows:,} rows can't show so little: test on more rows or raise gate.margin"
        elif margin and (needed := rows_needed(look)) is not None:
            text += f". Some {needed:,} test rows could show it, if the true change is the measured one"
    return Rule(name="not_worse", passed=look.passed, value=bound, limit=-margin, explanation=text)


def _error_not_worse(look: Look) -> Rule:
    """The mean squared error grew by less than the share `gate.margin`: the look's statistic exceeds its boundary."""
    z, margin, rows = critical(look), look.margin, look.rows
    value, limit = (look.p, look.level) if z is None else (look.statistic, z)
    grown = f"{-100 * look.difference / look.reference_error:+.2f} %" if look.reference_error else "from 0"
    text = (
        f"{_compared(look)}: the mean squared error changes by {grown}, {100 * margin:+.2f} % allowed: {_p(look.p)}, "
        f"z = {look.statistic:.2f}; {_asked(look)}"
    )
    if not look.passed and z is not None:
        if (needed := rows_needed(look)) is not None:
            text += f". Some {needed:,} test rows could show it, if the true change is the measured one"
        elif margin * look.reference_error <= z * look.standard_error:
            text += f". {rows:,} rows can't show so little: test on more rows or raise gate.margin"
    return Rule(name="not_worse", passed=look.passed, value=value, limit=limit, explanation=text)


def class_drop_rule(
    classes: Sequence[tuple[str, int]], changes: Sequence[tuple[int, int]], settings: GateSettings
) -> Rule:
    """A class fails when its recall drops by more than the limit and the drop is significant.

    `classes` are pairs of name and test rows, `changes` those of :attr:`Evaluation.class_changes`.

    Significant means: by McNemar's exact test within the class at `gate.confidence`, with Holm's correction over the
    classes that have rows. Without the test, a class of 20 rows would block a good candidate because of 2 unlucky
    rows; without the correction, one of 100 classes would nearly always block it. The disadvantage: a real loss in a
    small class can pass. At 0.95 confidence, a class that gains no row must lose 8 rows to fail among 10 classes, and
    11 rows among 100 classes.
    """
    found = zip(classes, changes, strict=True)
    tested = [(name, rows, gained, lost) for (name, rows), (gained, lost) in found if rows]
    p_values = holm([mcnemar(lost, gained) for _, _, gained, lost in tested])
    drops = [(lost - gained) / rows for _, rows, gained, lost in tested]
    limit, level = settings.max_class_drop, alpha_of(settings)
    failed = [i for i, drop in enumerate(drops) if drop > limit and p_values[i] <= level]
    worst = max(failed or range(len(tested)), key=lambda i: (drops[i], -p_values[i]))
    name, rows, gained, lost = tested[worst]
    text = f"no class lost recall; {percent(limit)} allowed"
    if lost > gained:
        text = (
            f"class {name!r} lost most: recall {points(gained - lost, rows)} on {rows:,} rows, "
            f"{-100 * limit:+.2f} allowed ({lost:,} lost, {gained:,} gained: {_p(p_values[worst])} "
            f"over {len(tested)} classes)"
        )
    if failed:
        text += f"; {len(failed)} of {len(tested)} classes fail"
    elif drops[worst] > limit:
        text += "; within the noise of so few rows"
    return Rule(name="class_drop", passed=not failed, value=drops[worst], limit=limit, explanation=text)


def _versions(evaluation: Evaluation) -> str:
    numbers = (evaluation.champion_version, evaluation.anchor_version)
    return " or ".join(number for number in numbers if number is not None)


def _compared(look: Look) -> str:
    if look.measure == "log_loss":
        return (
            f"neither model makes a mistake, so log loss decides: lower on {look.gained:,} rows, higher on "
            f"{look.lost:,}"
        )
    other = "champion" if look.question == "better" else "reference"
    if look.measure == "squared_error":
        ours = math.sqrt(max(0.0, look.reference_error - look.difference))
        return (
            f"RMSE {shown(ours)} against {shown(math.sqrt(look.reference_error))} of the {other}; the candidate's "
            f"squared error is lower on {counted(look.gained, 'row')}, higher on {look.lost:,}"
        )
    return (
        f"the candidate alone is right on {counted(look.gained, 'row')}, the {other} alone on {look.lost:,}"
    )


def _asked(look: Look) -> str:
    """Text that says what the look needs to pass."""
    ways = [f"z above {look.boundary:.2f}"] if look.boundary is not None else []
    if look.level > 0:
        ways.append(f"p at most {look.level:.2g}")
    which = f"comparison {look.number:,} with version {look.reference_version}"
    return f"{which} needs {' or '.join(ways)}" if ways else f"{which} has no level left to spend"


def _would_need(look: Look) -> str:
    """Text that says what gain, or how many test rows, a failed look would have needed."""
    if critical(look) is None:
        return ". Raise gate.horizon, or test on fresh rows under another model name"
    if look.measure == "log_loss":
        return ""
    if look.measure == "squared_error":
        return _error_would_need(look)
    gain, rows = gain_needed(look), rows_needed(look)
    text = f". Needed is a gain of {100 * (gain or 0):.2f} points on these {look.rows:,} rows"
    if gain is not None and gain * look.rows > look.reference_wrong:
        text += (
            f", more than correcting the champion's {counted(look.reference_wrong, 'mistake')} would give: test on "
            "more rows or set gate.policy=not_worse"
        )
    if rows is not None:
        text += f"; a true gain of {100 * look.difference:.2f} points takes some {rows:,} test rows"
    return text


def _error_would_need(look: Look) -> str:
    most, rows = error_needed(look), rows_needed(look)
    if most is None:
        text = f". No RMSE would be shown to be better on these {look.rows:,} rows: test on more rows"
    else:
        text = f". Needed is an RMSE of at most some {shown(most)} on these {look.rows:,} rows"
    if rows is not None:
        ours = math.sqrt(max(0.0, look.reference_error - look.difference))
        text += f"; a true RMSE of {shown(ours)} takes some {rows:,} test rows"
    return text


def percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def points(change: int, rows: int) -> str:
    return f"{100 * change / rows:+.2f} points"


def _p(p: float) -> str:
    return "p < 0.0001" if p < 0.0001 else f"p = {p:.2g}"
