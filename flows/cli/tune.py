"""`evergreen tune`: search for better settings, and retrain with the best settings."""

from typing import Literal

import click

from flows.cli.options import common, recipe_argument, setting_assignments
from flows.cli.output import say
from training.errors import EXIT_OK

_SPACES = """values of --space:
  uniform(a,b)       numbers from a to b                    uniform(0,0.5)
  loguniform(a,b)    the same, uniform on a log scale       loguniform(1e-4,1e-1)
  quniform(a,b,q)    multiples of q from a to b             quniform(0,0.5,0.1)
  randint(a,b)       whole numbers from a to b - 1          randint(2,10)
  lograndint(a,b)    the same, uniform on a log scale       lograndint(16,512)
  choice(x,y,...)    one of these                           choice(adamw,sgd)

Only settings of the section training can be searched: `evergreen plan RECIPE` lists them. Trials are
compared by the loss on the validation rows, and train in one process each (scaling.num_workers=0).
"""


class WithSpaces(click.Command):
    """A command whose help explains the values of `--space`."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the explanation without rewrapping its lines."""
        formatter.write(f"\n{_SPACES}")


@click.command(cls=WithSpaces)
@recipe_argument
@click.option(
    "--space",
    "spaces",
    multiple=True,
    required=True,
    metavar="NAME=VALUES",
    help="values of a setting to search; may be repeated",
)
@click.option(
    "--trials",
    type=int,
    default=8,
    show_default=True,
    help="number of trials; with pbt, of trials in each generation",
)
@click.option(
    "--scheduler",
    type=click.Choice(["asha", "pbt", "none"]),
    default="asha",
    show_default=True,
    help="asha ends worse trials early; pbt is population-based training; none trains all to the end",
)
@click.option("--generations", type=int, help="with pbt: number of generations (default: 4)")
@click.option("--concurrent", type=int, help="trials at a time (default: as many as CPUs or GPUs allow)")
@click.option("--seed", type=int, default=0, show_default=True, help="seed of the trials' values")
@click.option("--no-retrain", is_flag=True, help="only search: do not retrain with the winner's values")
@setting_assignments
@common
def command(
    recipe: str,
    spaces: tuple[str, ...],
    trials: int,
    scheduler: Literal["asha", "pbt", "none"],
    generations: int | None,
    concurrent: int | None,
    seed: int,
    no_retrain: bool,
    assignments: tuple[str, ...],
    verbose: bool,
    quiet: bool,
    as_json: bool,
) -> int:
    """Search better settings on Ray Tune, and retrain with the best: compare, promote or keep.

    RECIPE is a name that `evergreen recipes` lists, or the path of a recipe file. The same command continues an
    interrupted search, and repeats nothing of a finished one.
    """
    from flows.cli.data_changes import held_shown
    from flows.cli.search_summary import print_search
    from flows.local.api import tune
    from flows.local.environment import log_to_terminal
    from training.search.space import split_assignments
    from training.settings.overrides import parse_assignments

    log_to_terminal(verbose, quiet)
    with held_shown():
        result = tune(
            recipe,
            split_assignments(spaces),
            trials=trials,
            scheduler=scheduler,
            generations=generations,
            concurrent=concurrent,
            seed=seed,
            settings=parse_assignments(assignments),
            retrain_winner=not no_retrain,
        )
    print_search(result)
    if as_json:
        say(result.model_dump_json())
    return EXIT_OK
