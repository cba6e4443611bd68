"""The gate: is the candidate really better than the champion, or only luckier on these test rows?

In: an :class:`Evaluation` (both models on the same rows) and the gate's settings. Out: a :class:`Verdict`
with every rule, its numbers and its outcome. Nothing is read, written or moved here. The rules:

floor       accuracy on the test rows reaches `gate.floor`. The accuracy itself is held against the floor, not
            the lower end of its interval: that is what people mean by "at least 90 %".
better      policy "better": the candidate is more accurate, by McNemar's exact test at `gate.confidence`.
not_worse   policy "not_worse": the lower confidence bound of the paired difference in accuracy is above
            -`gate.margin`. A small test split can't show a small loss: at the defaults (0.95, 0.005) even
            identical predictions need some 730 rows.
class_drop  no class loses more recall than `gate.max_class_drop`, as far as the test rows can tell.
finite      only listed when a metric of the candidate is NaN or infinite: then nothing else counts.

Without a champion only the floor is asked for.
"""

import math
from collections.abc import Sequence

from training.records import Evaluation, Rule, Score, Verdict
from training.settings import GateSettings

_METRICS = ("accuracy", "low", "high", "log_loss", "macro_f1", "calibration_error")


def judge(evaluation: Evaluation, settings: GateSettings) -> Verdict:
    """Hold `evaluation` against every rule; the candidate is promoted when all pass.

    Raises ValueError when the evaluation's counts contradict each other.
    """
    _check(evaluation)
    rules = _rules(evaluation, settings)
    promote = all(rule.passed for rule in rules)
    return Verdict(
        promote=promote,
        summary=_summary(evaluation, rules, promote),
        rules=rules,
        champion_version=evaluation.champion_version,
        policy=settings.model_dump(),
    )


def same_policy(verdict: Verdict, settings: GateSettings) -> bool:
    """Whether `verdict` was reached under `settings`; if not, the evaluation has to be judged anew."""
    return verdict.policy == settings.model_dump()


def mcnemar(favourable: int, opposite: int) -> float:
    """How likely luck alone puts `favourable` or more of all discordant rows on one side.

    The one-sided test of Q. McNemar, Psychometrika 12 (1947) 153-157, with exact binomial probabilities; 1
    when the models never disagree.
    """
    from scipy.stats import binomtest

    if favourable + opposite == 0:
        return 1.0
    return float(binomtest(favourable, favourable + opposite, 0.5, alternative="greater").pvalue)


def difference_bound(gained: int, lost: int, rows: int, confidence: float) -> float:
    """Lower one-sided confidence bound of the candidate's accuracy minus the champion's, paired on `rows`.

    `gained` rows only the candidate, `lost` rows only the champion got right. The score interval of T.
    Tango, Statistics in Medicine 17 (1998) 891-908, with a continuity correction of half a row. Without the
    correction the error rate at 0.95 reaches 1.3 times the nominal one when few rows are discordant; with
    it, it stays below (the tests add up the exact probabilities). Wald's interval has no width without
    discordant rows.
    """
    from scipy.optimize import brentq
    from scipy.stats import norm

    z = float(norm.ppf(confidence))
    excess = gained - lost - 0.5
    if rows + excess <= 0:  # every row lost: no difference is too low to be believed
        return -1.0

    def surplus(difference: float) -> float:
        return excess - rows * difference - z * _deviation(gained, lost, rows, difference)

    return float(brentq(surplus, -1.0, excess / rows, xtol=1e-12))


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for their number, so that the chance of any false alarm is the level at most.

    S. Holm, Scandinavian Journal of Statistics 6 (1979) 65-70.
    """
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for place, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        highest = max(highest, min(1.0, (len(p_values) - place) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def _check(evaluation: Evaluation) -> None:
    """The verdict rests on counts: refuse those that can't come from one comparison."""
    if evaluation.rows < 1:
        raise ValueError("evaluation.rows: no test rows, nothing to judge")
    if evaluation.champion is None:
        return
    gained, lost = evaluation.only_candidate_right, evaluation.only_champion_right
    if evaluation.both_right + gained + lost + evaluation.both_wrong != evaluation.rows:
        raise ValueError(f"evaluation: the paired counts do not add up to {evaluation.rows} rows")
    by_class, classes = evaluation.class_changes, len(evaluation.candidate.classes)
    if len(by_class) != classes:
        raise ValueError(f"evaluation: class_changes has {len(by_class)} of {classes} classes")
    if (sum(one for one, _ in by_class), sum(other for _, other in by_class)) != (gained, lost):
        raise ValueError("evaluation: class_changes do not add up to the paired counts")


def _rules(evaluation: Evaluation, settings: GateSettings) -> tuple[Rule, ...]:
    broken = [name for name in _METRICS if not math.isfinite(getattr(evaluation.candidate, name))]
    if broken:  # a NaN is kept out of the records: JSON has none
        text = f"the candidate's {', '.join(broken)} is NaN or infinite"
        return (Rule(name="finite", passed=False, value=float(len(broken)), limit=0.0, explanation=text),)
    floor = _floor(evaluation.candidate, evaluation.rows, settings.floor)
    if evaluation.champion is None:
        return (floor,)
    compare = _better if settings.policy == "better" else _not_worse
    return floor, compare(evaluation, settings), _class_drop(evaluation, settings)


def _floor(candidate: Score, rows: int, floor: float) -> Rule:
    passed = candidate.accuracy >= floor
    text = (
        f"accuracy {_percent(candidate.accuracy)} on {rows:,} rows {'reaches' if passed else 'is below'} "
        f"the floor of {_percent(floor)}"
    )
    return Rule(name="floor", passed=passed, value=candidate.accuracy, limit=floor, explanation=text)


def _better(evaluation: Evaluation, settings: GateSettings) -> Rule:
    p = mcnemar(evaluation.only_candidate_right, evaluation.only_champion_right)
    level = _level(settings)
    passed = p <= level
    text = f"{_discordant(evaluation)}: {_p(p)}, " + (
        f"at most {level:g} needed" if passed else f"above {level:g}: not shown to be better"
    )
    return Rule(name="better", passed=passed, value=p, limit=level, explanation=text)


def _not_worse(evaluation: Evaluation, settings: GateSettings) -> Rule:
    gained, lost, rows = evaluation.only_candidate_right, evaluation.only_champion_right, evaluation.rows
    bound = difference_bound(gained, lost, rows, settings.confidence)
    passed = bound > -settings.margin
    text = (
        f"{_discordant(evaluation)}: accuracy changes by {_points(gained - lost, rows)}, at worst by "
        f"{100 * bound:+.2f} at {settings.confidence:.4g} confidence; {-100 * settings.margin:+.2f} allowed"
    )
    if not passed and 0 < settings.margin <= -difference_bound(0, 0, rows, settings.confidence):
        text += f". {rows:,} rows can't show so little: test on more rows or raise gate.margin"
    return Rule(name="not_worse", passed=passed, value=bound, limit=-settings.margin, explanation=text)


def _class_drop(evaluation: Evaluation, settings: GateSettings) -> Rule:
    """A class fails when its recall drops by more than the limit and the drop is significant.

    Significant means: McNemar's exact test within the class at `gate.confidence`, with Holm's correction
    over the classes that have rows. Without the test, a class of 20 rows would block a good candidate over
    2 unlucky rows; without the correction, one of 100 classes would nearly always. The price: real harm to
    a small class can pass. At 0.95 confidence a class that gains no row must lose 8 to fail among 10
    classes, 11 among 100.
    """
    found = zip(evaluation.candidate.classes, evaluation.class_changes, strict=True)
    tested = [(one.name, one.rows, gained, lost) for one, (gained, lost) in found if one.rows]
    p_values = holm([mcnemar(lost, gained) for _, _, gained, lost in tested])
    drops = [(lost - gained) / rows for _, rows, gained, lost in tested]
    limit, level = settings.max_class_drop, _level(settings)
    failed = [i for i, drop in enumerate(drops) if drop > limit and p_values[i] <= level]
    worst = max(failed or range(len(tested)), key=lambda i: (drops[i], -p_values[i]))
    name, rows, gained, lost = tested[worst]
    text = f"no class lost recall; {_percent(limit)} allowed"
    if lost > gained:
        text = (
            f"class {name!r} lost most: recall {_points(gained - lost, rows)} on {rows:,} rows, "
            f"{-100 * limit:+.2f} allowed ({lost:,} lost, {gained:,} gained: {_p(p_values[worst])} "
            f"over {len(tested)} classes)"
        )
    if failed:
        text += f"; {len(failed)} of {len(tested)} classes fail"
    elif drops[worst] > limit:
        text += "; within the noise of so few rows"
    return Rule(name="class_drop", passed=not failed, value=drops[worst], limit=limit, explanation=text)


def _summary(evaluation: Evaluation, rules: tuple[Rule, ...], promote: bool) -> str:
    failed = "; ".join(rule.explanation for rule in rules if not rule.passed)
    champion = evaluation.champion
    if champion is None:
        return f"Promoted, the first: {rules[0].explanation}" if promote else f"Not promoted: {failed}"
    name = f"version {evaluation.champion_version}" if evaluation.champion_version else "the champion"
    if not promote:
        return f"Kept {name}: {failed}"
    ours, theirs = _percent(evaluation.candidate.accuracy), _percent(champion.accuracy)
    return f"Promoted over {name}: accuracy {ours} against {theirs}; {rules[1].explanation}"


def _deviation(gained: int, lost: int, rows: int, difference: float) -> float:
    """Standard deviation of (gained - lost) when the true difference is `difference`.

    `share`, the probability of a lost row, is its maximum-likelihood estimate under that constraint (Tango's
    q21).
    """
    a = 2 * rows
    b = (a - gained + lost) * difference - gained - lost
    c = -lost * difference * (1 - difference)
    share = (math.sqrt(max(0.0, b * b - 4 * a * c)) - b) / (2 * a)
    return math.sqrt(max(0.0, rows * (2 * share + difference * (1 - difference))))


def _discordant(evaluation: Evaluation) -> str:
    gained, lost = evaluation.only_candidate_right, evaluation.only_champion_right
    return f"candidate right where champion wrong on {gained:,} rows, the reverse on {lost:,}"


def _level(settings: GateSettings) -> float:
    return round(1 - settings.confidence, 12)  # 0.05, not 0.050000000000000044


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _points(change: int, rows: int) -> str:
    return f"{100 * change / rows:+.2f} points"


def _p(p: float) -> str:
    return "p < 0.0001" if p < 0.0001 else f"p = {p:.2g}"
