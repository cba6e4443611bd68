"""The looks behind a verdict as page and Markdown show them: error probability spent, and results needed to pass."""

from dataclasses import dataclass

from tasks.gate.measures import measure_of
from tasks.report_page.wording import NOTHING, number, percent, points
from training.records import Look, Verdict

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
    planned = [("Comparison with this version", f"{look.number:,} of {look.horizon:,} planned")]
    facts = [
        *([] if look.baseline else planned),
        ("Rows compared", f"{look.rows:,}, of which the models differ on {look.gained + look.lost:,}"),
        (
            "Error probability spent so far",
            f"{percent(look.spent)} of {percent(look.alpha)}",
        ),
        ("Measured", f"z = {look.statistic:.2f}, p = {number(look.p)}"),
        ("Needed: z above", NOTHING if look.boundary is None else f"{look.boundary:.2f}"),
        ("Needed: p at most" if strict else "or p at most", number(look.level)),
    ]
    facts += measure_of(look).facts(look, verdict)
    if round(look.reference_excess, 4):
        name = f"Selection bias in the accuracy of version {look.reference_version}"
        facts.append((name, f"some {points(look.reference_excess)} points"))
    word = "better than" if look.question == "better" else "not worse than"
    return LookFacts(f"Is it {word} {look.baseline or f'version {look.reference_version}'}?", tuple(facts))
