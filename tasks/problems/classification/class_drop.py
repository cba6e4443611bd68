"""The gate's rule about single classes: the candidate must not lose much recall in any class."""

from collections.abc import Sequence

from tasks.gate.look import alpha_of
from tasks.gate.paired import holm, mcnemar
from tasks.gate.wording import p_value, percent, points
from training.records import Rule
from training.settings.schema import GateSettings


def class_drop_rule(
    classes: Sequence[tuple[str, int]], changes: Sequence[tuple[int, int]], settings: GateSettings
) -> Rule:
    """A class fails when its recall drops by more than the limit and the drop is significant.

    `classes` are pairs of name and number of test rows; `changes` are the pairs (gained, lost) of
    :attr:`Evaluation.class_changes`.

    Significant means: by McNemar's exact test within the class at `gate.confidence`, with Holm's correction over the
    classes that have rows. Without the test, a class of 20 rows would block a good candidate because of 2 unlucky
    rows; without the correction, one of 100 classes would nearly always block a good candidate. The disadvantage: a
    real loss in a small class can pass. At 0.95 confidence, a class that gains no row must lose 8 rows to fail among
    10 classes, and 11 rows among 100 classes.
    """
    classes_with_changes = zip(classes, changes, strict=True)
    tested = [(name, rows, gained, lost) for (name, rows), (gained, lost) in classes_with_changes if rows]
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
            f"{-100 * limit:+.2f} allowed ({lost:,} lost, {gained:,} gained: {p_value(p_values[worst])} "
            f"over {len(tested)} classes)"
        )
    if failed:
        text += f"; {len(failed)} of {len(tested)} classes fail"
    elif drops[worst] > limit:
        text += "; within the noise of so few rows"
    return Rule(name="class_drop", passed=not failed, value=drops[worst], limit=limit, explanation=text)
