"""In: a recipe's data source. Out: its files, complete and verified, with a digest of their content.

Fails with DataError for content of another size (final), and with TransientError for network errors and damaged
files (retried).
"""

import logging
from pathlib import Path

from tasks.step import step
from training.data.sources.wording import counted
from training.errors import DataError
from training.plan import RunPlan, choose_source
from training.recipe import load, reload_with_paths
from training.records import SourceFiles
from training.redaction import redact
from training.settings.schema import Settings
from training.storage.files import remove_folder
from training.storage.paths import Home

log = logging.getLogger("evergreen.download")

# Kinds of source files that are read in place, without a check of their digest. Files of other kinds are checked when
# they are read, or copied first; the digits are installed with scikit-learn.
READ_IN_PLACE = ("idx", "cifar", "parquet", "parquet-targets")


@step("download", retries=3, pause_s=2)
def download(recipe: str, settings: Settings, home: str) -> SourceFiles:
    """Fetch the source files, or reuse those that are in the home already."""
    return fetch(recipe, settings, Home(Path(home)))


def check_unchanged(plan: RunPlan) -> None:
    """Raise :class:`DataError` if source files that are read without a comparison changed since they were hashed.

    The raw rows of the plan, which may have been read from the changed files, are removed.
    """
    if plan.files.kind not in READ_IN_PLACE:
        return
    home = Home(Path(plan.home))
    recipe = reload_with_paths(plan.recipe, plan.paths.recipe)
    now = choose_source(recipe, plan.settings, home).fetch(home.sources / recipe.name)
    if now.digest != plan.files.digest:
        remove_folder(home.raw_rows(plan.recipe.name, plan.fingerprint))
        raise DataError(
            f"{redact(plan.files.origin)}: the files changed while they were read. Run the command again once they no "
            "longer change."
        )


def fetch(recipe_name: str, settings: Settings, home: Home) -> SourceFiles:
    """Fetch a recipe's source files into `home`, or reuse those that are there already."""
    recipe, _ = load(recipe_name)
    files = choose_source(recipe, settings, home).fetch(home.sources / recipe.name)
    log.info(
        "source: %s, %.1f MB, from %s", counted(files.files, "file"), files.bytes / 1e6, redact(files.origin)
    )
    return files
