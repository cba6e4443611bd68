"""Formats numbers and verdicts for people, in the same way on the page, in the Markdown and in the pictures."""

import math
from dataclasses import dataclass
from typing import Literal

from training.percentages import percent_text
from training.records import ALREADY_CHAMPION, NOT_AGAIN, Release, Verdict

Tone = Literal["good", "warn", "bad", "plain"]
NOTHING = "–"


def percent(share: float, decimals: int = 2) -> str:
    """A share between 0 and 1 as a percentage, with a no-break space before the percent sign."""
    return f"{percent_text(share, decimals)}\N{NO-BREAK SPACE}%" if math.isfinite(share) else NOTHING


def level(confidence: float) -> str:
    """A level of confidence as a percentage, with all its digits: 99.5 % is not 100 %."""
    return f"{100 * confidence:.6g}\N{NO-BREAK SPACE}%"


def unbroken(text: str) -> str:
    """`text` without a line break before a percent sign."""
    return text.replace(" %", "\N{NO-BREAK SPACE}%")


def points(change: float) -> str:
    """A difference of two shares in percentage points, with its sign unless it rounds to zero."""
    return signed(100 * change, 2)


def signed(value: float, decimals: int) -> str:
    """`value` with a plus sign or a typographic minus sign, and without a sign for zero."""
    if not math.isfinite(value):
        return NOTHING
    text = f"{abs(value):,.{decimals}f}"
    return text if not text.strip("0.") else ("+" if value > 0 else "−") + text


def relative(change: float) -> str:
    """A change with two significant digits, and with its sign."""
    if change == 0 or not math.isfinite(change):
        return signed(change, 0)
    return signed(change, max(0, 1 - math.floor(math.log10(abs(change)))))


def number(value: float) -> str:
    """`value` with four significant digits; from 1,000 on as a whole number, so without an exponent."""
    if not math.isfinite(value):
        return NOTHING
    return (f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}").replace("-", "−")


def signed_number(value: float) -> str:
    """`value` as :func:`number` writes it, with a plus sign if it is positive."""
    return ("+" if value > 0 else "") + number(value)


def compact(value: float) -> str:
    """`value` at an axis: as :func:`number` writes it, but with an exponent from 1,000,000 on."""
    return f"{value:.3g}".replace("-", "−") if abs(value) >= 1_000_000 else number(value)


def rows_fact(rows: int) -> tuple[str, str]:
    """Name and value of the number of test rows that a failed comparison would have needed."""
    return "Test rows needed if the measured difference is the true one", f"some {rows:,}"


def duration(seconds: float) -> str:
    """Wall time, formatted in at most two units."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min"


def size(count: float) -> str:
    """A number of bytes in decimal units."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def tone_of(change: float, higher_is_better: bool = True) -> Tone:
    """Tone of a change: "good" for an improvement, "bad" for the opposite, "plain" for zero or a value not finite."""
    if not math.isfinite(change) or change == 0:
        return "plain"
    return "good" if (change > 0) == higher_is_better else "bad"


def summary(verdict: Verdict, alias: str) -> str:
    """The outcome and its reason; `alias` is the alias that the version has after the decision.

    A candidate that passed the gate and did not become champion was refused: its weights had been rolled back.
    """
    refused = verdict.promote and alias != "champion"
    return f"Not promoted: {NOT_AGAIN}" if refused else verdict.summary


def was_promoted(release: Release) -> bool:
    """Whether the run made its version champion; False if the version was champion before, as by another home."""
    verdict = release.verdict
    return (
        release.alias == "champion" and verdict.promote and not verdict.summary.startswith(ALREADY_CHAMPION)
    )


def reason(verdict: Verdict, alias: str) -> str:
    """The reason for the outcome: :func:`summary` without the outcome at its beginning."""
    text = summary(verdict, alias)
    return text.partition(": ")[2] or text


def sentence(text: str) -> str:
    """`text` with a capital letter at its beginning and a punctuation mark at its end."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


@dataclass(frozen=True)
class Headline:
    """The outcome of a run as a badge of one or two words and as a title of one sentence."""

    tone: Tone
    badge: str
    title: str


def headline(release: Release) -> Headline:
    """Headline for the candidate's outcome. It follows the alias, not the gate: promotion can fail after the gate."""
    version, before = release.version, release.verdict.champion_version
    if release.alias == "champion" and not was_promoted(release):
        return Headline("good", "Champion", f"Version {version} is the champion already")
    if release.alias == "champion":
        if before in (None, version):
            return Headline("good", "Promoted", f"Version {version} is the champion")
        return Headline("good", "Promoted", f"Version {version} replaces version {before} as champion")
    if release.verdict.promote:
        return Headline("warn", "Not promoted", f"Version {version} passed the gate but is not the champion")
    if before is None:
        return Headline("warn", "Refused", f"Version {version} was refused; there is no champion yet")
    return Headline("warn", "Refused", f"Version {before} stays champion; version {version} was refused")
