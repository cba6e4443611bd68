"""The only module that prints. Control characters in texts, such as file names, never reach the terminal."""

import sys
from typing import TextIO

from training.printable import printable


def say(text: str, file: TextIO | None = None, end: str = "\n") -> None:
    """Print `text` with control characters escaped, on standard output or on `file`."""
    print(printable(text), file=file or sys.stdout, end=end)
