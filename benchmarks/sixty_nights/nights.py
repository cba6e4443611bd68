"""The sixty nights: what each export contains, and how the night has to end."""

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.sixty_nights import customers
from benchmarks.sixty_nights.customers import COMPLAINTS_FROM, Change

FIRST_ROWS, NEW_ROWS, IMPORTED_ROWS = 3000, 40, 6000
_NONSENSE = frozenset({"held", "failed", "kept"})
_QUIET = frozenset({"kept", "unchanged", "promoted"})  # a promotion has to be truly better, see the judge
_PROMOTED = frozenset({"promoted"})


@dataclass(frozen=True)
class Night:
    """One night: the rows of its export, the change to them, and the outcomes that are right.

    `cut` is the share of the file's bytes that arrives.
    """

    number: int
    data: str
    rows: int
    ends: frozenset[str] = _QUIET
    change: Change | None = None
    cut: float = 1.0

    @property
    def is_nonsense(self) -> bool:
        """Whether the export is wrong, so that the champion has to stay."""
        return self.change is not None or self.cut < 1


_NONSENSE_NIGHTS: dict[int, tuple[str, Change]] = {
    6: ("bills in cents", customers.bill_in_cents),
    10: ("ages rewritten, each by 0.01", customers.age_rewritten),
    14: ("column months mostly empty", customers.months_mostly_empty),
    18: ("one class only", customers.only_who_stayed),
    21: ("all labels flipped", customers.labels_flipped),
    28: ("labels of the newest third flipped", customers.labels_of_the_newest_flipped),
    31: ("some months with a unit, as text", customers.months_text),
    33: ("column bill gone", customers.without_bill),
    35: ("20 customers twice", customers.twice),
}
_CUT_NIGHTS = {30: 0.35, 34: 0.9}
_QUIET_WEEKS = range(37, 51)  # no new rows; the export is the same file
_IMPORTED = 52


def sixty_nights() -> Iterator[Night]:
    """All nights in order."""
    rows = FIRST_ROWS
    for number in range(1, 61):
        if number == 1:
            yield Night(number, f"{rows:,} rows", rows, _PROMOTED)
        elif number in _NONSENSE_NIGHTS:
            data, change = _NONSENSE_NIGHTS[number]
            yield Night(number, data, rows, _NONSENSE, change)
        elif number in _CUT_NIGHTS:
            share = _CUT_NIGHTS[number]
            yield Night(number, f"file cut off at {100 * share:.0f} %", rows, _NONSENSE, cut=share)
        elif number in _QUIET_WEEKS:
            yield Night(number, "nothing new", rows)
        elif number == COMPLAINTS_FROM:
            yield Night(number, "new column complaints, which tells much", rows, _PROMOTED)
        else:
            new = IMPORTED_ROWS if number == _IMPORTED else NEW_ROWS
            rows += new
            yield Night(number, f"{new:,} new rows", rows)
