"""The `evergreen` command: parses arguments, calls a subcommand, and turns errors into messages and exit statuses.

`--help`, a reused run and the plan of a model that was checked before import neither torch nor Ray.
"""

import atexit
import gc
import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module
from types import FrameType

import click

from flows.cli.closed_output import lenient_output
from flows.cli.output import say
from training.errors import (
    EXIT_BAD_DATA,
    EXIT_BAD_SETTING,
    EXIT_BUG,
    EXIT_HELD,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_OUTPUT_CLOSED,
    EXIT_RESOURCE,
    EXIT_RETRY,
    EXIT_TERMINATED,
    EXIT_TRAINING_FAILED,
    EvergreenError,
    HeldError,
    ResourceError,
    classify,
)
from training.printable import paragraph
from training.redaction import redact
from training.storage.paths import home_to_write
from training.termination import TerminatedError, ended_by_sigterm

log = logging.getLogger("evergreen")

_EXIT_STATUSES = f"""exit status:
  {EXIT_OK}   promoted, kept on purpose, or nothing to do
  {EXIT_BUG}   a bug in Evergreen; please report it with the traceback
  {EXIT_BAD_SETTING}   a setting, option, address or recipe is unknown or impossible; nothing was trained
  {EXIT_BAD_DATA}   the data, or files that Evergreen wrote, break a rule; verify: an invariant is broken
  {EXIT_TRAINING_FAILED}   training failed for good
  {EXIT_RESOURCE}   the machine lacks disk, memory or a permission; doctor: a check failed
  {EXIT_HELD}   the data changed as only a mistake does: nothing was trained; look at them, then fix or accept them
  {EXIT_RETRY}  a temporary failure: the same command resumes where it stopped
  {EXIT_INTERRUPTED} interrupted; the same command resumes where it stopped
  {EXIT_OUTPUT_CLOSED} standard output was closed, as after `| head`
  {EXIT_TERMINATED} terminated; the same command resumes where it stopped
"""


_COMMANDS = (
    "retrain",
    "plan",
    "tune",
    "history",
    "recipes",
    "predict",
    "rollback",
    "accept",
    "doctor",
    "verify",
    "gc",
    "ui",
)
_COMPLETION = "_EVERGREEN_COMPLETE"  # set by the shell while it completes a command


class Commands(click.Group):
    """The subcommands; each is a module of this package, which is imported when its command is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Names of the subcommands, most important first."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:  # noqa: ARG002
        """The subcommand of that name, or None."""
        return import_module(f"flows.cli.{name}").command if name in _COMMANDS else None

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the exit statuses without rewrapping their lines."""
        formatter.write(f"\n{_EXIT_STATUSES}")


@click.group(cls=Commands)
def program() -> None:
    """Keep models up to date: retrain, compare with the model in service, and promote only what is really better."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    with lenient_output() as output:
        status = _guarded(argv)
    return EXIT_OUTPUT_CLOSED if output.is_closed and status == EXIT_OK else status


def _guarded(argv: Sequence[str] | None) -> int:
    """Run one command; returns its exit status also when a signal ends the command."""
    in_main_thread = threading.current_thread() is threading.main_thread()
    try:
        with _ended_by_signals() if in_main_thread else nullcontext():
            return _run(argv)
    except Exception:  # a bug of the code that explains errors: no interruption
        raise
    except BaseException as error:
        if isinstance(error, SystemExit | GeneratorExit):
            raise
        # Prefect reports SIGTERM with its own exception type.
        terminated = isinstance(error, TerminatedError) or type(error).__name__ == "TerminationSignal"
        word = "terminated" if terminated else "interrupted"
        say(f"\nevergreen: {word}; the same command resumes where it stopped", file=sys.stderr)
        return EXIT_TERMINATED if terminated else EXIT_INTERRUPTED


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """In the block, SIGTERM and SIGHUP end the command in order; SIGHUP says that the terminal is gone.

    A process that `nohup` started still ignores SIGHUP. When a terminal is closed, the shell and the kernel may both
    send SIGHUP. A second SIGHUP is ignored: it would end a training without its last checkpoint.
    """

    def hang_up(_signum: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        os.kill(os.getpid(), signal.SIGTERM)

    with ended_by_sigterm():
        if (before := signal.getsignal(signal.SIGHUP)) is signal.SIG_DFL:
            signal.signal(signal.SIGHUP, hang_up)
        try:
            yield
        finally:
            if before is signal.SIG_DFL:
                signal.signal(signal.SIGHUP, before)


def _run(argv: Sequence[str] | None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    if _COMPLETION in os.environ:
        program.main(arguments, prog_name="evergreen", complete_var=_COMPLETION)
    try:
        status = _invoked(arguments)
        sys.stdout.flush()  # here, so that a full disk is reported
        return status
    except click.UsageError as error:
        return _say_usage(error)
    except Exception as error:
        return _fail(error, "--json" in arguments, "--verbose" in arguments)


def _invoked(arguments: list[str]) -> int:
    """Call the command; returns its exit status.

    This replaces click's own `main`, which would handle Ctrl-C, SIGTERM and a closed output itself.
    """
    try:
        with program.make_context("evergreen", arguments) as context:
            atexit.register(gc.freeze)  # saves 2.5 s: no garbage collection of all of torch and Ray at exit
            status: int = program.invoke(context)
            return status
    except click.exceptions.Exit as ended:  # raised by --help
        return ended.exit_code


def _say_usage(error: click.UsageError) -> int:
    """Print the error and how the command is called; returns the exit status."""
    if error.ctx is not None:
        say(error.ctx.get_usage(), file=sys.stderr)
    say(f"evergreen: {error.format_message()}", file=sys.stderr)
    return EXIT_BAD_SETTING


def _fail(error: Exception, as_json: bool, verbose: bool) -> int:
    """Print the error in the user's terms; returns the exit status.

    The traceback is printed only for a bug or with --verbose.
    """
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
        with suppress(OSError):  # such as of a full disk, which may be the error itself
            data = {"data": known.check.model_dump(mode="json")} if isinstance(known, HeldError) else {}
            say(json.dumps({"error": message, "exit_status": status, **data}))
    return status


def _explain(error: Exception) -> EvergreenError | None:
    """The meaning of `error` for the user, or None for a bug.

    A full disk causes many kinds of errors. So the home is checked before a bug or a transient error is reported; a
    home that is not writable, or whose disk is full, is reported instead.
    """
    known = classify(error)
    if known is None or known.transient:
        try:
            home_to_write()
        except ResourceError as lacking:
            return lacking
        except OSError as unreadable:
            return ResourceError(f"the home can't be examined ({unreadable}), after: {error}")
    return known


if __name__ == "__main__":
    sys.exit(main())
