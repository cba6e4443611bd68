"""Refuse a table of which a few values turned a column into text that the champion learned as numbers."""

from typing import NamedTuple

from training.data.tables.damaged_columns import check_not_damaged
from training.data.tables.other_columns import kinds_of
from training.plan import RunPlan
from training.recipe import Recipe
from training.records import DatasetVersion


class DeclaredColumns(NamedTuple):
    """Columns that a recipe leaves out of its table, and columns whose kinds it declares."""

    dropped: tuple[str, ...] = ()
    typed: tuple[str, ...] = ()


def declared_columns(recipe: Recipe) -> DeclaredColumns:
    """What the source of a recipe declares about columns."""
    source = recipe.source
    return DeclaredColumns(tuple(getattr(source, "drop", ())), tuple(getattr(source, "types", ())))


def check_columns_sound(
    plan: RunPlan, number: str, reference: DatasetVersion, declared: DeclaredColumns
) -> None:
    """Raise :class:`DataError` for a damaged column of the run's table, which has been read but not prepared.

    `reference` is the dataset of version `number`, the champion. Nothing is checked with `data.changes=ignore`.
    """
    data = plan.settings.data
    if plan.files.kind != "table" or reference.table is None or data.changes == "ignore":
        return
    kinds = reference.table.given or kinds_of(reference.table)
    meant = {*declared.typed, *data.ignore_changes}
    check_not_damaged(plan.files, kinds, f"the champion ({plan.model} version {number})", meant)
