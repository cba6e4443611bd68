"""`evergreen recipes`: list the recipes that come with Evergreen."""

import json
from typing import TYPE_CHECKING

import click

from flows.cli.options import common
from flows.cli.output import say
from training.errors import EXIT_OK

if TYPE_CHECKING:
    from training.recipe import Recipe


@click.command
@common
def command(verbose: bool, quiet: bool, as_json: bool) -> int:
    """List the recipes that come with Evergreen."""
    from flows.cli.summary import print_recipes
    from training.recipe import BUILT_IN, load

    del verbose, quiet
    listed = [load(name)[0] for name in BUILT_IN]
    print_recipes(listed)
    if as_json:
        say(json.dumps([_as_json(recipe) for recipe in listed]))
    return EXIT_OK


def _as_json(recipe: "Recipe") -> dict[str, str]:
    return {
        "name": recipe.name,
        "summary": recipe.summary,
        "problem": recipe.problem.name,
        "trainer": recipe.settings.trainer,
    }
