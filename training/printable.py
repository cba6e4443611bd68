"""Makes foreign text safe to show: names of files, classes and archive members, and errors of libraries.

A terminal obeys control characters: ESC [ moves the cursor and hides lines, and C1 controls do the same in one byte.
Bidirectional controls show `gnp.exe` for `exe.png`. All of these characters are escaped as \\uXXXX, which is also how
JSON writes them, so that JSON stays valid. Line feeds and tabs are kept.
"""

import logging
import re

_UNSAFE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # C0 and C1 controls
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # controls of the direction of writing
    "\u2028\u2029\ufeff\ufff9-\ufffb"  # line separators, and marks that few programs show
    "\ud800-\udfff"  # surrogates, which stand for bytes of names that are not UTF-8
    "\U000e0000-\U000e007f]"  # tags: invisible text
)
_MARKUP = re.compile(r"([\\`*_{}\[\]<>|#~&$])")
_NEXT_LINE = re.compile(r"\n(?! {4})")


def printable(text: str) -> str:
    """`text` with each control character escaped; safe text, also the result of an earlier call, stays as it is."""
    return _UNSAFE.sub(_spelled, text)


def _spelled(match: "re.Match[str]") -> str:
    code = ord(match[0])
    if code < 0x10000:
        return f"\\u{code:04x}"
    high, low = divmod(code - 0x10000, 0x400)
    return f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04x}"


def paragraph(text: str) -> str:
    """:func:`printable`, with all lines after the first indented: a name with a line feed can't imitate a message."""
    return _NEXT_LINE.sub("\n    ", printable(text))


def escape_markdown(text: str) -> str:
    """`text` on one line, with all characters escaped that Markdown or HTML would read as markup."""
    return _MARKUP.sub(r"\\\1", " ".join(text.split()))


class PrintableFilter(logging.Filter):
    """Logging filter that turns every message of a handler into a :func:`paragraph`."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Change the message of `record` in place; returns True, so every record passes."""
        record.msg, record.args = paragraph(record.getMessage()), None
        return True
