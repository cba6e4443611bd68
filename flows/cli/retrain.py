"""`evergreen retrain`: bring a model up to date."""

import json
from typing import TYPE_CHECKING

import click

from flows.cli.options import WithSettings, common, recipe_and_settings
from flows.cli.output import say
from training.errors import EXIT_OK

if TYPE_CHECKING:
    from training.records import Release


@click.command(cls=WithSettings)
@recipe_and_settings
@common
def command(
    recipe: str, assignments: tuple[str, ...], force: bool, verbose: bool, quiet: bool, as_json: bool
) -> int:
    """Bring a model up to date: train, compare, promote or keep.

    RECIPE is a name that `evergreen recipes` lists, or the path of a recipe file.
    """
    from flows.cli.data_changes import held_shown
    from flows.cli.summary import print_release
    from flows.local.api import retrain
    from flows.local.environment import log_to_terminal
    from flows.stopwatch import command_timed
    from training.settings.overrides import parse_assignments

    log_to_terminal(verbose, quiet)
    with command_timed(), held_shown():
        release = retrain(recipe, parse_assignments(assignments), force=force)
    print_release(release)
    if as_json:
        say(json.dumps(_as_json(release)))
    return EXIT_OK


def _as_json(release: "Release") -> dict[str, object]:
    from tasks.report_page.wording import was_promoted

    return {
        "run_key": release.run_key,
        "dataset_fingerprint": release.dataset_fingerprint,
        "data_changes": release.data_changes,
        "weights_digest": release.weights_digest,
        "model": release.model,
        "version": release.version,
        "alias": release.alias,
        "verdict": "promoted" if was_promoted(release) else "kept",
        "metrics": release.metrics,
        "data": None if release.data is None else release.data.summary,
        "reused": release.reused,
        "seconds": round(release.seconds, 2),
        "report": release.report,
    }
