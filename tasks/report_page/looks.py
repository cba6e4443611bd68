"""The looks behind a verdict as page and Markdown show them: error probability spent, and results needed to pass."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from tasks.gate.needed import error_needed, gain_needed, rows_needed
from tasks.report_page.wording import NOTHING, number, percent, points
from training.records import Look, Measure, Verdict

Fact = tuple[str, str]


@dataclass(frozen=True)
class LookFacts:
    """One comparison: a title, and its facts as (name, value) pairs."""

    title: str
    facts: tuple[Fact, ...]


def look_facts(verdict: Verdict) -> tuple[LookFacts, ...]:
    """All comparisons of a verdict; empty for verdicts of earlier versions of Evergreen, which recorded none."""
    return tuple(_facts(look, verdict) for look in verdict.looks)


def _facts(look: Look, verdict: Verdict) -> LookFacts:
    strict = look.error_control == "strict"
    facts = [
        ("Comparison with this version", f"{look.number:,} of {look.horizon:,} planned"),
        ("Rows compared", f"{look.rows:,}, of which the models differ on {look.gained + look.lost:,}"),
        (
            "Error probability spent so far",
            f"{percent(look.spent)} of {percent(look.alpha)}",
        ),
        ("Measured", f"z = {look.statistic:.2f}, p = {number(look.p)}"),
        ("Needed: z above", NOTHING if look.boundary is None else f"{look.boundary:.2f}"),
        ("Needed: p at most" if strict else "or p at most", number(look.level)),
    ]
    facts += _MEASURED[look.measure](look, verdict)
    if round(look.reference_excess, 4):
        facts.append(
            ("In its accuracy from having been chosen", f"some {points(look.reference_excess)} points")
        )
    word = "better than" if look.question == "better" else "not worse than"
    return LookFacts(f"Is it {word} version {look.reference_version}?", tuple(facts))


def _gain(look: Look, verdict: Verdict) -> list[Fact]:
    """Facts of a comparison by accuracy, in percentage points."""
    facts = [("Measured gain", f"{points(look.difference)} points")]
    choice = verdict.choice
    if choice is not None and look.question == "better":
        facts.append(("Gain corrected for the choice", f"{points(choice.corrected_gain)} points"))
        facts.append(("Accuracy corrected for the choice", percent(choice.corrected_accuracy)))
    if look.passed:
        return facts
    gain = gain_needed(look)
    if look.question == "better" and gain is not None:
        facts.append(("Gain needed on these rows", f"{points(gain)} points"))
    return facts + _rows(look)


def _errors(look: Look, _verdict: Verdict) -> list[Fact]:
    """Facts of a comparison by squared errors, in the unit of the target."""
    ours = math.sqrt(max(0.0, look.reference_error - look.difference))
    facts = [("Measured RMSE", f"{number(ours)} against {number(math.sqrt(look.reference_error))}")]
    if look.passed:
        return facts
    most = error_needed(look)
    if look.question == "better" and most is not None:
        facts.append(("RMSE needed on these rows", f"at most {number(most)}"))
    return facts + _rows(look)


def _nothing(_look: Look, _verdict: Verdict) -> list[Fact]:
    return []


def _rows(look: Look) -> list[Fact]:
    rows = rows_needed(look)
    if rows is None:
        return []
    return [("Test rows needed if the measured difference is the true one", f"some {rows:,}")]


_MEASURED: dict[Measure, Callable[[Look, Verdict], list[Fact]]] = {
    "accuracy": _gain,
    "log_loss": _nothing,
    "squared_error": _errors,
}
