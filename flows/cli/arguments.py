"""What several commands share: their arguments, and the home that they work in."""

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from training.storage.paths import Home


def add_common(parser: argparse.ArgumentParser) -> None:
    """Arguments of every command."""
    parser.add_argument("--verbose", action="store_true", help="show debug messages and tracebacks")
    parser.add_argument("--quiet", action="store_true", help="show warnings only while it runs")
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object as the last line of standard output"
    )


def add_store(parser: argparse.ArgumentParser) -> None:
    """The argument of commands that read the model registry without a recipe."""
    parser.add_argument(
        "--tracking-uri", metavar="URI", help="MLflow's store (default: the one under EVERGREEN_HOME)"
    )


def prepared_home(options: argparse.Namespace, quiet: bool, read_only: bool = False) -> "Home":
    """The home, once this process's environment and log are set up for a run in it.

    It is made, or found to be writable, unless the command is `read_only`.
    """
    from flows.local.environment import prepare
    from training.storage.paths import home, home_to_read

    place = home_to_read() if read_only else home()
    prepare(place)
    log_to(options, quiet)
    return place


def log_to(options: argparse.Namespace, quiet: bool) -> None:
    """Send the log to standard error, in the detail that the arguments ask for."""
    from flows.local.environment import log_to_terminal

    log_to_terminal(options.verbose, quiet)
