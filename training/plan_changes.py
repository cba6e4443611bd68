"""What changed in the rows since the recipe's last run, counted and said in words.

In: a plan, and its dataset version if that is prepared. Out: the plan, which says how many rows are new, gone and
changed instead of that the data are others.
"""

from pathlib import Path

from training.data.differences import Differences, differences
from training.data.manifest import read_manifest
from training.errors import DataError
from training.plan import OTHER_DATA, RunPlan
from training.records import DatasetVersion
from training.storage.paths import Home

_SAME_ROWS = "the same rows as in the last run, prepared with other settings or by other code"
_GONE = "other than in the last run, whose rows are no longer in this home to be compared"


def with_data_changes(plan: RunPlan, version: DatasetVersion | None) -> RunPlan:
    """The plan with the differences of its rows from those of the recipe's last run, in words, if there are any.

    Without `version`, the rows are not prepared, and can't be counted yet.
    """
    if not plan.data_before or version is None or plan.data_changes:
        return plan
    words = _words(plan, version)
    changes = tuple(f"data: {words}" if line == OTHER_DATA else line for line in plan.changes)
    return plan.model_copy(update={"changes": changes, "data_changes": words})


def _words(plan: RunPlan, version: DatasetVersion) -> str:
    folder = Home(Path(plan.home)).dataset(plan.recipe.name, plan.data_before)
    try:
        found = differences(read_manifest(folder, plan.data_before), version)
    except DataError:  # removed by `evergreen gc`, or damaged
        return _GONE
    return found.words() if _any(found) else _SAME_ROWS


def _any(found: Differences) -> bool:
    return any((found.added, found.removed, found.changed, found.new_columns, found.gone_columns))
