"""One column in two profiles, as the rules about columns take it."""

from dataclasses import dataclass

from training.profile_records import Change, ColumnProfile, Effect
from training.settings.change_limits import ChangeLimits


@dataclass(frozen=True)
class Pair:
    """A column in the champion's profile and in the current one; `noun` is how sentences call it."""

    reference: ColumnProfile
    current: ColumnProfile
    reference_rows: int
    current_rows: int
    limits: ChangeLimits
    noun: str

    @property
    def reference_values(self) -> float:
        """Number of rows with a value in the champion's dataset."""
        return self.reference_rows * (1 - self.reference.missing)

    @property
    def current_values(self) -> float:
        """Number of rows with a value in the current dataset."""
        return self.current_rows * (1 - self.current.missing)

    def limit(self, rule: str) -> float:
        """The limit of a rule for this column."""
        return self.limits.of(rule, self.current.name)

    def change(
        self,
        what: str,
        values: tuple[str, str],
        measure: float,
        limit: float,
        effect: Effect,
        sentence: str,
    ) -> Change:
        """A change of this column from one of `values` to the other; `sentence` goes on after the noun."""
        return Change(
            what=what,
            column=self.current.name,
            reference=values[0],
            current=values[1],
            measure=measure,
            limit=limit,
            effect=effect,
            sentence=f"{self.noun} {sentence}",
        )
