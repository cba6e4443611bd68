"""What the page shows of a dataset's profile, and of what changed since the champion's dataset."""

from typing import Any

from tasks.report_page.wording import number, percent
from training.data.profiles.wording import moment
from training.profile_records import ColumnProfile
from training.records import DatasetVersion, Release

_SHOWN = (0.01, 0.25, 0.5, 0.75, 0.99)
_CATEGORIES = 6


def profile_context(release: Release, dataset: DatasetVersion) -> dict[str, Any]:
    """Variables of the template: the comparison, and for each column its missing values and quantiles or shares."""
    profile = dataset.profile
    columns = () if profile is None else (*profile.columns, *profile.measures)
    target = () if profile is None or profile.target is None else (profile.target,)
    return {
        "data_check": release.data,
        "profile_shares": [f"{100 * share:g}\N{NO-BREAK SPACE}%" for share in _SHOWN],
        "profile_rows": [_row(column) for column in (*columns, *target)],
    }


def _row(column: ColumnProfile) -> dict[str, Any]:
    missing = percent(column.missing) if column.missing else "none"
    if not column.quantiles:
        shares = [f"{name} {percent(share, 1)}" for name, share in column.categories.items()]
        rest = column.distinct - _CATEGORIES
        text = ", ".join(shares[:_CATEGORIES]) + (f" and {rest:,} more" if rest > 0 else "")
        return {"name": column.name, "missing": missing, "quantiles": (), "text": text or "no values"}
    spell = (lambda value: moment(value, True)) if column.kind == "date" else number
    quantiles = [spell(column.quantile(share)) for share in _SHOWN]
    return {"name": column.name, "missing": missing, "quantiles": quantiles, "text": ""}
