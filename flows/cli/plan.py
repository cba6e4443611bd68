"""`evergreen plan`: show what `retrain` would do."""

import click

from flows.cli.options import WithSettings, common, recipe_and_settings
from flows.cli.output import say
from training.errors import EXIT_OK


@click.command(cls=WithSettings)
@recipe_and_settings
@common
def command(
    recipe: str, assignments: tuple[str, ...], force: bool, verbose: bool, quiet: bool, as_json: bool
) -> int:
    """Show what `retrain` would do, and which steps are done already.

    RECIPE is a name that `evergreen recipes` lists, or the path of a recipe file.
    """
    from flows.cli.summary import print_preview
    from flows.local.api import plan
    from flows.local.environment import log_to_terminal
    from training.settings.overrides import parse_assignments

    del quiet  # a plan logs warnings only
    log_to_terminal(verbose, quiet=True)
    made = plan(recipe, parse_assignments(assignments), force=force)
    print_preview(made)
    if as_json:
        say(made.model_dump_json())
    return EXIT_OK
