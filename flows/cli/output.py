"""The one place that prints: what others chose of a text, such as the name of a file, can't command the terminal."""

import sys
from typing import TextIO

from training.printable import printable


def say(text: str, file: TextIO | None = None, end: str = "\n") -> None:
    """Print on standard output, or on `file`."""
    print(printable(text), file=file or sys.stdout, end=end)
