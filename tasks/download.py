"""In: a recipe's data source. Out: its files, complete and verified, with a digest of their content.

Fails with DataError when the content is wrong (final), and with TransientError for network errors (retried).
"""

import logging
from pathlib import Path

from tasks.step import step
from training.data.sources.wording import counted
from training.plan import choose_source
from training.recipe import load
from training.records import SourceFiles
from training.redaction import redact
from training.settings.schema import Settings
from training.storage.paths import Home

log = logging.getLogger("evergreen.download")


@step("download", retries=3, pause_s=2)
def download(recipe: str, settings: Settings, home: str) -> SourceFiles:
    """Fetch the source files, or reuse those that are in the home already."""
    return fetch(recipe, settings, Home(Path(home)))


def fetch(recipe_name: str, settings: Settings, home: Home) -> SourceFiles:
    """Fetch a recipe's source files into `home`, or reuse those that are there already."""
    recipe, _ = load(recipe_name)
    files = choose_source(recipe, settings, home).fetch(home.sources / recipe.name)
    log.info(
        "source: %s, %.1f MB, from %s", counted(files.files, "file"), files.bytes / 1e6, redact(files.origin)
    )
    return files
