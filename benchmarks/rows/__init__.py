"""One module a row; `ROW` of each says what is measured. Side A is Evergreen, side B what it is held against."""

from importlib import import_module

from benchmarks.harness.row import Row

_MODULES = (
    "p1a", "p1b", "p2", "p3a", "p3b", "p4", "p5", "p6", "p7", "p8", "p10", "p11", "p12", "p13",
    "p14_rows", "p14_runs", "p14_versions", "p14_again", "p14_cluster", "p15", "p16", "s1",
    "n1", "n2", "n3", "g1", "g2",
)  # fmt: skip


def all_rows() -> list[Row]:
    """Every row in the order of the table."""
    return [import_module(f"benchmarks.rows.{name}").ROW for name in _MODULES]


def find_row(row_id: str) -> Row:
    """The row with this id. Raises KeyError when there is none."""
    return {row.id: row for row in all_rows()}[row_id]
