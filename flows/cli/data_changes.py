"""What a command prints when the data changed: a table of the changes, with both values."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.table import Table
from rich.text import Text

from flows.cli.summary import standard_output
from training.errors import HeldError
from training.printable import printable
from training.profile_records import DataCheck


@contextmanager
def held_shown() -> Iterator[None]:
    """Print the table of changes when the block is held; the error goes on."""
    try:
        yield
    except HeldError as held:
        print_changes(held.check)
        raise


def print_changes(check: DataCheck) -> None:
    """Print a table of the changes, those that hold first."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for title in ("", "changed", "champion", "now", "measure", "limit"):
        table.add_column(title)
    for change in check.changes:
        mark = Text("✗", "red") if change.effect == "hold" else Text("·", "yellow")
        what = f"{change.what} of {change.column}" if change.column else change.what
        cells = (what, change.reference, change.current, f"{change.measure:.3g}", f"{change.limit:.3g}")
        table.add_row(mark, *(Text(printable(cell)) for cell in cells))
    console = standard_output()
    console.print(Text(f"{check.model}: held", style="bold yellow"))
    console.print(table)
