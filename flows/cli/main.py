"""The `evergreen` command: a thin door to the flows. `--help`, `plan` and a reused run import neither torch nor Ray."""

import atexit
import gc
import json
import logging
import os
import select
import sys
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from importlib import import_module

import click

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
from training.printable import paragraph
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


_COMMANDS = ("retrain", "plan", "recipes", "predict", "rollback", "doctor", "verify", "gc", "ui")
_COMPLETION = "_EVERGREEN_COMPLETE"  # set by the shell while it completes a command


class Commands(click.Group):
    """The subcommands, each a file of this folder, which is imported when its command is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Names in the order of their importance."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:  # noqa: ARG002
        """The command of that name, or None."""
        return import_module(f"flows.cli.{name}").command if name in _COMMANDS else None

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the exit statuses as they are, without wrapping their lines again."""
        formatter.write(f"\n{_EXIT_STATUSES}")


@click.group(cls=Commands)
def program() -> None:
    """Keep models up to date: retrain, compare with the model in service, and promote only what is really better."""


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
    arguments = list(sys.argv[1:] if argv is None else argv)
    if _COMPLETION in os.environ:
        program.main(arguments, prog_name="evergreen", complete_var=_COMPLETION)
    try:
        status = _invoked(arguments)
        sys.stdout.flush()
        return EXIT_OUTPUT_CLOSED if _output_is_closed() else status
    except click.UsageError as error:
        return _say_usage(error)
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _output_is_closed():
            return EXIT_OUTPUT_CLOSED
        return _fail(error, "--json" in arguments, "--verbose" in arguments)


def _invoked(arguments: list[str]) -> int:
    """Call the command; returns its exit status.

    Not by click's own `main`, which takes Ctrl-C, SIGTERM and a closed output for ends of its own.
    """
    try:
        with program.make_context("evergreen", arguments) as context:
            atexit.register(gc.freeze)  # else Python scans all of torch and Ray for garbage once more: 2.5 s
            status: int = program.invoke(context)
            return status
    except click.exceptions.Exit as ended:  # of --help
        return ended.exit_code


def _say_usage(error: click.UsageError) -> int:
    """Say how a command is called; returns the exit status."""
    if error.ctx is not None:
        say(error.ctx.get_usage(), file=sys.stderr)
    say(f"evergreen: {error.format_message()}", file=sys.stderr)
    return EXIT_BAD_SETTING


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
