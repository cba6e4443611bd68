"""One module per row, whose `ROW` defines the measurement. Side A is Evergreen, side B what it is compared with."""

from importlib import import_module

from benchmarks.harness.row import Row

# A run may be cut off, so the rows that docs/performance.md discusses come first.
_MODULES = (
    "n1", "p8", "p7", "p4", "p3b", "p13", "p14_rows", "p10", "p1a", "p1b", "p2", "p3a", "p12", "p5", "n2",
    "p14_again", "p11", "p16", "p6", "p15", "p14_versions", "p14_runs", "s1", "n3", "p14_cluster",
    "g1", "g2",
)  # fmt: skip


def all_rows() -> list[Row]:
    """All rows, in the order in which they are measured."""
    return [import_module(f"benchmarks.rows.{name}").ROW for name in _MODULES]


def find_row(row_id: str) -> Row:
    """The row with this id. Raises KeyError if there is none."""
    return {row.id: row for row in all_rows()}[row_id]
