"""`evergreen recipes`: list the recipes that come with Evergreen."""

import json
from typing import TYPE_CHECKING, NamedTuple

import click

from flows.cli.options import common
from flows.cli.output import say
from training.errors import EXIT_OK

if TYPE_CHECKING:
    from training.recipe import Recipe
    from training.recipe_sources import RecipeRef


@click.command
@common
def command(verbose: bool, quiet: bool, as_json: bool) -> int:
    """List the recipes that come with Evergreen."""
    from flows.cli.summary import print_recipes
    from training.recipe import BUILT_IN, load

    del verbose, quiet
    listed = [_facts(*load(name)) for name in BUILT_IN]
    print_recipes(listed)
    if as_json:
        say(json.dumps([recipe._asdict() for recipe in listed]))
    return EXIT_OK


class RecipeFacts(NamedTuple):
    """A recipe, what its trainer promises after a kill, and the extra that it needs (empty: none)."""

    name: str
    summary: str
    problem: str
    trainer: str
    resumes: str
    same_bits_after_kill: bool
    extra: str


def _facts(recipe: "Recipe", ref: "RecipeRef") -> RecipeFacts:
    from tasks.checks.library_check import libraries_of
    from training.seams import extra_of
    from training.trainers.base import trainer_named

    promise = trainer_named(recipe.settings.trainer).promise(recipe.settings)
    return RecipeFacts(
        name=recipe.name,
        summary=recipe.summary,
        problem=recipe.problem.name,
        trainer=recipe.settings.trainer,
        resumes=promise.resumes,
        same_bits_after_kill=promise.same_bits_after_kill,
        extra=extra_of(libraries_of(recipe, ref)),
    )
