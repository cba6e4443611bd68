"""Values of profiles in words."""

from datetime import UTC, datetime, timedelta

from training.percentages import percent_text


def percent(share: float) -> str:
    """A share in percent with at most one decimal, more where it would look like none or all."""
    text = percent_text(share, 1)
    return f"{text.removesuffix('.0')} %"


def figure(value: float) -> str:
    """A number with four significant digits."""
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def moment(value: float, is_date: bool) -> str:
    """A date, given in days since 1970, or another number that tells the time."""
    if not is_date:
        return f"{value:.15g}"
    try:
        at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=value)
    except OverflowError:
        return f"{value:.15g}"
    return at.strftime("%Y-%m-%d") if value == int(value) else at.strftime("%Y-%m-%d %H:%M")


def quoted(names: list[str]) -> str:
    """Some names, quoted; of many only the first."""
    return ", ".join(map(repr, names[:5])) + (", …" if len(names) > 5 else "")
