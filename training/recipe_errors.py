"""Errors of the code of a recipe, as errors that name the recipe, the function and the line.

Without this, a mistake in a user's function would look like a bug in Evergreen.
"""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from training.errors import TrainingError, classify
from training.seams import EXTRAS, install_command

ENDS_PROGRAM = (
    'it calls sys.exit() or parses the command line when imported; put that under if __name__ == "__main__"'
)
_INSTALLED = "site-packages"


@contextmanager
def named_as(recipe: str, what: str) -> Iterator[None]:
    """Raise an unexpected error of the block as :class:`TrainingError` of the recipe's function or model `what`.

    Errors that have an explanation already, such as a full disk or a wrong setting, pass unchanged.
    """
    try:
        yield
    except Exception as error:  # the recipe's code, which may raise any exception
        if classify(error) is not None:
            raise
        raise TrainingError(
            f"recipe {recipe}: {what} failed: {type(error).__name__}: {error}{raised_at(error)}{missing_extra(error)}"
        ) from error


def raised_at(error: BaseException) -> str:
    """The last file and line outside installed packages before `error` was raised, as " (FILE, line N)".

    Empty without a traceback: Ray transfers tracebacks as text.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _INSTALLED not in frame.filename] or frames
    return f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""


def missing_extra(error: Exception) -> str:
    """The end of the message of an error that a library of an extra which is not installed causes; empty otherwise."""
    library = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    return f". Install the library by `{install_command(library)}`." if library in EXTRAS else ""
