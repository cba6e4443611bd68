"""Options that several commands share, and the setup of the home in which a command works."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from training.storage.paths import Home

_ARGUMENTS = "evergreen.arguments"
Function = TypeVar("Function", bound=Callable[..., Any])


def common(function: Function) -> Function:
    """Add the options of every command: `verbose`, `quiet` and `as_json`."""
    for option in (
        click.option(
            "--json", "as_json", is_flag=True, help="print JSON as the last line of standard output"
        ),
        click.option("--quiet", is_flag=True, help="show only warnings while the command runs"),
        click.option("--verbose", is_flag=True, help="show debug messages and tracebacks"),
    ):
        function = option(function)
    return function


def tracking_uri(function: Function) -> Function:
    """Add the option of commands that read the model registry without a recipe."""
    text = "MLflow's store (default: the one under EVERGREEN_HOME)"
    return click.option("--tracking-uri", metavar="URI", help=text)(function)


def recipe_argument(function: Function) -> Function:
    """Add the argument `recipe`."""
    return click.argument("recipe", shell_complete=_complete_recipe)(function)


def setting_assignments(function: Function) -> Function:
    """Add the option that overrides settings of a recipe."""
    return click.option(
        "--set",
        "assignments",
        multiple=True,
        metavar="NAME=VALUE",
        help="override a setting; may be repeated",
    )(function)


def recipe_and_settings(function: Function) -> Function:
    """Add the argument `recipe`, and the options that override its settings or force a new training."""
    force = click.option("--force", is_flag=True, help="train again even if nothing changed")
    return recipe_argument(setting_assignments(force(function)))


class WithSettings(click.Command):
    """A command whose help lists every setting; with a recipe on the command line, that recipe's settings."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the arguments for the help, which click writes before it reads them."""
        ctx.meta[_ARGUMENTS] = list(args)
        return super().parse_args(ctx, args)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the settings without rewrapping their lines."""
        from flows.cli.help import settings_help
        from training.errors import EvergreenError
        from training.recipe import load

        recipe, name = None, self._recipe_name(ctx)
        try:
            recipe = None if name is None else load(name)[0]
        except (EvergreenError, OSError) as error:
            formatter.write(f"\n{error}\n")
        formatter.write(f"\n{settings_help(recipe)}\n")

    def _recipe_name(self, ctx: click.Context) -> str | None:
        """The recipe that the command line names, if any."""
        try:
            options, _, _ = self.make_parser(ctx).parse_args(list(ctx.meta.get(_ARGUMENTS, ())))
        except click.UsageError:
            return None
        name = options.get("recipe")
        return name if isinstance(name, str) else None


def _complete_recipe(_context: click.Context, _argument: click.Parameter, typed: str) -> list[CompletionItem]:
    """Complete to the names of recipes that come with Evergreen, or else to files."""
    from training.recipe import BUILT_IN

    names = [CompletionItem(name) for name in BUILT_IN if name.startswith(typed)]
    return names or [CompletionItem(typed, type="file")]


def prepared_home(verbose: bool, quiet: bool, read_only: bool = False) -> "Home":
    """Set up the environment and log of this process for a command in the home; returns the home.

    Creates the home, or checks that it is writable, unless the command is `read_only`. The disk may be nearly full.
    """
    from flows.local.environment import log_to_terminal, prepare
    from training.storage.paths import home_to_read, home_to_write

    home = home_to_read() if read_only else home_to_write(for_run=False)
    prepare(home)
    log_to_terminal(verbose, quiet)
    return home
