"""Numbers and verdicts as people read them; one spelling for the page, the Markdown and the pictures."""

import math
from dataclasses import dataclass
from typing import Literal

from training.records import Release, Verdict

Tone = Literal["good", "warn", "bad", "plain"]
NOTHING = "–"


def percent(share: float, decimals: int = 2) -> str:
    """A share of 1 as a percentage, which no line break can part."""
    return f"{100 * share:.{decimals}f}\N{NO-BREAK SPACE}%" if math.isfinite(share) else NOTHING


def unbroken(text: str) -> str:
    """`text` without a line break before a percent sign."""
    return text.replace(" %", "\N{NO-BREAK SPACE}%")


def points(change: float) -> str:
    """A difference of two shares in percentage points, with its sign unless it rounds to nothing."""
    return signed(100 * change, 2)


def signed(value: float, decimals: int) -> str:
    """`value` with a true minus or plus sign, and none for zero."""
    if not math.isfinite(value):
        return NOTHING
    text = f"{abs(value):,.{decimals}f}"
    return text if not text.strip("0.") else ("+" if value > 0 else "−") + text


def number(value: float) -> str:
    """Four significant digits, without an exponent where people would not write one."""
    if not math.isfinite(value):
        return NOTHING
    return (f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}").replace("-", "−")


def duration(seconds: float) -> str:
    """Wall time in at most two units."""
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
    """Whether a change is welcome."""
    if not math.isfinite(change) or change == 0:
        return "plain"
    return "good" if (change > 0) == higher_is_better else "bad"


def reason(verdict: Verdict) -> str:
    """Why the gate decided so: its summary without the outcome that it begins with."""
    return verdict.summary.partition(": ")[2] or verdict.summary


def sentence(text: str) -> str:
    """`text` with a capital at its beginning and a mark at its end."""
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


@dataclass(frozen=True)
class Headline:
    """The outcome in two words and in one sentence."""

    tone: Tone
    badge: str
    title: str


def headline(release: Release) -> Headline:
    """What became of the candidate. The alias decides, not the gate: promotion can fail later."""
    version, before = release.version, release.verdict.champion_version
    if release.alias == "champion":
        if before in (None, version):
            return Headline("good", "Promoted", f"Version {version} is the champion")
        return Headline("good", "Promoted", f"Version {version} replaces version {before} as champion")
    if release.verdict.promote:
        return Headline("warn", "Not promoted", f"Version {version} passed the gate but is not the champion")
    if before is None:
        return Headline("warn", "Refused", f"Version {version} was refused; there is no champion yet")
    return Headline("warn", "Refused", f"Version {before} stays champion; version {version} was refused")
