"""Rows that were rewritten, and rows whose classes were exchanged, hold the run; growth and corrections do not."""

from pathlib import Path

from small_runs import prepared

from training.data.profiles.identity import row_changes
from training.data.sources.table import Table
from training.records import DatasetVersion
from training.settings.change_limits import ChangeLimits, limits_of
from training.storage.paths import Home

ROWS = 80


def version(
    folder: Path, shift: float = 0.0, flipped: int = 0, rows: int = ROWS, key: str | tuple[str, ...] = ()
) -> DatasetVersion:
    """A table whose ages are shifted, and whose first rows have the other class."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = ["number,age,ill"]
    for row in range(rows):
        ill = ("yes", "no")[(row % 2) ^ (row < flipped)]
        lines.append(f"{1000 + row},{20 + row / 4 + shift},{ill}")
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    return prepared(Home(folder / "home"), Table(folder / "rows.csv", target="ill", key=key), "rows")


def held(old: DatasetVersion, new: DatasetVersion, limits: ChangeLimits | None = None) -> list[str]:
    """What holds the run."""
    changes = list(row_changes(old, new, limits or ChangeLimits()))
    assert all(change.effect == "hold" for change in changes)
    return [change.what for change in changes]


def test_rewritten_rows_hold_unless_they_have_a_key(tmp_path: Path) -> None:
    old, new = version(tmp_path / "old"), version(tmp_path / "new", shift=0.01)
    assert held(old, new) == ["identity"]
    keyed = (
        version(tmp_path / "keyed", key="number"),
        version(tmp_path / "new-keyed", shift=0.01, key="number"),
    )
    assert held(*keyed) == []


def test_exchanged_classes_hold(tmp_path: Path) -> None:
    old, new = version(tmp_path / "old"), version(tmp_path / "new", flipped=ROWS)
    assert held(old, new) == ["labels"]
    assert held(old, new, limits_of(["labels=inf"])) == []
    (change,) = row_changes(old, new, ChangeLimits())
    assert (
        change.sentence
        == "100 % of the rows that were there before are of another class: were labels exchanged?"
    )
    keyed = (
        version(tmp_path / "keyed", key="number"),
        version(tmp_path / "new-keyed", shift=0.01, flipped=ROWS, key="number"),
    )
    assert held(*keyed) == ["labels"]


def test_growth_and_corrected_classes_do_not_hold(tmp_path: Path) -> None:
    old = version(tmp_path / "old")
    assert held(old, version(tmp_path / "more", rows=ROWS + 30)) == []
    assert held(old, version(tmp_path / "corrected", flipped=ROWS // 3)) == []
