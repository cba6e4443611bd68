"""A `rich` console that obeys no control characters in what it is given to show."""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from training.printable import printable


class PrintableConsole(Console):
    """Colours and cursor movements come from rich alone; in texts they are spelled out."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """As rich does, with every text made printable."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(printable(text), style)

    def on_broken_pipe(self) -> None:
        """The command line knows what to do then; rich would end the process with the status of a bug."""
        raise BrokenPipeError
