"""Parse a report page, for tests that compare what it shows with the records."""

import re
from html.parser import HTMLParser


class Page(HTMLParser):
    """Parses a page as a browser would, checks that tags nest, and keeps the parts that the tests compare."""

    VOID = frozenset({"meta", "img", "br", "link", "hr", "input"})

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.rows: list[list[str]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in {"td", "th"}:
            self.rows[-1].append("")
        if tag == "small" and self.rows:
            self.rows[-1][-1] += " "

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> without a start"
        assert self.open.pop() == tag, f"</{tag}> at {self.getpos()} closes another tag"

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1] += data

    def row(self, head: str, width: int) -> list[str]:
        """The cells after the row head that begins with `head`, in the table with `width` columns."""
        return next(row[1:] for row in self.rows if len(row) == width and row[0].startswith(head))

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def share(text: str) -> float:
    """The fraction that a percentage or a change in percentage points denotes."""
    match = re.match(r"([+−]?)([\d.]+)", text)
    assert match, text
    return float(match[2]) * (-1 if match[1] == "−" else 1) / 100
