"""The `evergreen` command: a thin door to the flows. `--help`, `plan` and a reused run import neither torch nor Ray."""

import argparse
import atexit
import gc
import json
import logging
import os
import select
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import NamedTuple, NoReturn

from flows.cli.output import say
from training.errors import (
    EXIT_BAD_DATA,
    EXIT_BAD_SETTING,
    EXIT_BUG,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_OUTPUT_CLOSED,
    EXIT_RESOURCE,
    EXIT_RETRY,
    EXIT_TERMINATED,
    EXIT_TRAINING_FAILED,
    EvergreenError,
    ResourceError,
    classify,
)
from training.printable import paragraph, printable
from training.redaction import redact
from training.storage.paths import home
from training.termination import TerminatedError, ended_by_sigterm

log = logging.getLogger("evergreen")

_EXIT_STATUSES = f"""exit status:
  {EXIT_OK}   promoted, kept on purpose, or nothing to do
  {EXIT_BUG}   a bug in Evergreen; please report it with the traceback
  {EXIT_BAD_SETTING}   a setting is unknown, impossible or does not fit the data; nothing was trained
  {EXIT_BAD_DATA}   the data break a rule; nothing was registered
  {EXIT_TRAINING_FAILED}   training failed for good
  {EXIT_RESOURCE}   the machine lacks something: disk, memory, a writable folder
  {EXIT_RETRY}  worth retrying: the same command goes on where it stopped
  {EXIT_INTERRUPTED} interrupted; the same command goes on where it stopped
  {EXIT_OUTPUT_CLOSED} nobody reads what is written to standard output, as after `| head`
  {EXIT_TERMINATED} terminated; the same command goes on where it stopped
"""


class Command(NamedTuple):
    """A subcommand: how it reads its arguments and what it does."""

    help: str
    arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    try:
        with ended_by_sigterm() if in_main_thread else nullcontext():
            return _run(argv)
    except BaseException as error:
        if isinstance(error, SystemExit | GeneratorExit):
            raise
        # Prefect passes SIGTERM on as an exception of its own.
        terminated = isinstance(error, TerminatedError) or type(error).__name__ == "TerminationSignal"
        word = "terminated" if terminated else "interrupted"
        say(f"\nevergreen: {word}; the same command goes on where it stopped", file=sys.stderr)
        return EXIT_TERMINATED if terminated else EXIT_INTERRUPTED


def _run(argv: Sequence[str] | None) -> int:
    from flows.cli.commands import COMMANDS

    try:
        options = _parser(COMMANDS).parse_args(argv)
    except SystemExit:  # of --help, too
        if _output_is_closed():
            return EXIT_OUTPUT_CLOSED
        raise
    atexit.register(gc.freeze)  # else Python looks all of torch and Ray through for garbage once more: 2.5 s
    try:
        status = COMMANDS[options.command].run(options)
        sys.stdout.flush()
        return status
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _output_is_closed():
            return EXIT_OUTPUT_CLOSED
        return _fail(error, getattr(options, "json", False), getattr(options, "verbose", False))


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        super().error(printable(message))


def _parser(commands: dict[str, Command]) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="evergreen",
        description="Keeps PyTorch models up to date: retrains, compares with the model in service, and promotes "
        "only what is really better.",
        epilog=_EXIT_STATUSES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in commands.items():
        one = subparsers.add_parser(
            name,
            help=command.help,
            description=command.help,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.arguments(one)
    return parser


def _output_is_closed() -> bool:
    """Whether nobody reads standard output any more; then what is left of it goes nowhere."""
    output = select.poll()
    try:
        output.register(sys.stdout.fileno(), 0)  # errors are always told
    except OSError:  # no file, as in a test
        return False
    if not output.poll(0):
        return False
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python flushes once more at its end
    return True


def _fail(error: Exception, as_json: bool, verbose: bool) -> int:
    """Say what went wrong in the user's terms; a traceback only for a bug, or when asked for."""
    known = _explain(error)
    if known is None or verbose:
        import traceback

        say(redact("".join(traceback.format_exception(error))), end="", file=sys.stderr)
    message = redact(
        str(known) if known else f"{type(error).__name__}: {error} (a bug in Evergreen; please report it)"
    )
    status = known.exit_status if known else EXIT_BUG
    say(f"evergreen: {paragraph(message)}", file=sys.stderr)
    if as_json:
        say(json.dumps({"error": message, "exit_status": status}))
    return status


def _explain(error: Exception) -> EvergreenError | None:
    """What `error` means; a full disk has many symptoms, so it is looked for before a symptom is believed."""
    known = classify(error)
    if known is None or known.transient:
        try:
            home()
        except ResourceError as lacking:
            return lacking
    return known


if __name__ == "__main__":
    sys.exit(main())
