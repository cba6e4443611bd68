"""A `rich` console that escapes control characters in the texts that it shows."""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from training.printable import printable


class PrintableConsole(Console):
    """A console whose colours and cursor movements come from rich alone; control characters in texts are escaped."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as rich does, but make every text printable."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(printable(text), style)

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError for the command line to handle; rich would exit with the status of a bug."""
        raise BrokenPipeError
