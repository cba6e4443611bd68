"""Texts with control sequences, changes of writing direction or forged lines are printed with escapes."""

import io
import json
import logging
import re
import subprocess
import sys
import tarfile
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.logging import RichHandler
from rich.table import Table
from rich.text import Text

from flows.cli import summary
from flows.cli.output import say
from flows.local import environment
from tasks.terminal.console import PrintableConsole
from training.data.sources.archives import unpack
from training.errors import DataError
from training.printable import paragraph, printable

# Erases the line before it, colours by a C1 control, reverses the direction, forges a line, and is not UTF-8.
NAME = "cat\x1b[2K\x9b31m\u202egnp\r\n12:00:00 promoted\udcff"
SHOWN = "cat\\u001b[2K\\u009b31m\\u202egnp\\u000d\n    12:00:00 promoted\\udcff"
UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
COLOUR = re.compile(r"\x1b\[[\d;]*m")


@given(st.text(st.characters()))
def test_nothing_that_is_printed_commands_a_terminal(text: str) -> None:
    shown = printable(text)
    assert not UNSAFE.search(shown)
    assert all(
        unicodedata.category(character) not in ("Cc", "Cs") or character in "\n\t" for character in shown
    )
    assert printable(shown) == shown
    assert paragraph(paragraph(text)) == paragraph(text)
    assert json.loads(printable(json.dumps([text], ensure_ascii=False))) == [text]


@given(st.text(st.characters(categories=["L", "M", "N", "P", "S", "Zs"])))
def test_letters_of_all_languages_stay(text: str) -> None:
    assert printable(text) == text


def test_an_error_names_it_safely() -> None:
    assert str(DataError(f"{NAME}: has zero bytes")) == printable(f"{NAME}: has zero bytes")


def test_what_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    say(NAME)
    say(NAME, sys.stderr)
    assert [UNSAFE.search(text) for text in capsys.readouterr()] == [None, None]


def test_a_line_of_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("evergreen")
    before = (logger.handlers[:], logger.propagate, logger.level)
    try:
        environment.log_to_terminal(verbose=False, quiet=False)
        logging.getLogger("evergreen.test").warning("%s: left out", NAME)
    finally:
        logger.handlers[:], logger.propagate = before[:2]
        logger.setLevel(before[2])
    time, _, said = capsys.readouterr().err.partition(" ")
    assert (len(time), said) == (8, f"{SHOWN}: left out\n")


def test_a_line_of_prefects_log(caplog: pytest.LogCaptureFixture) -> None:
    """In deployments, Prefect attaches handlers to Evergreen's logger."""
    logger, stream = logging.getLogger("evergreen"), io.StringIO()
    handler = logging.StreamHandler(stream)
    logger.addHandler(handler)
    try:
        environment.enable_logging()
        logging.getLogger("evergreen.test").warning("%s: left out", NAME)
    finally:
        logger.removeHandler(handler)
    assert stream.getvalue() == f"{SHOWN}: left out\n"


def test_tables_and_logs_with_colours() -> None:
    out = io.StringIO()
    console = PrintableConsole(file=out, force_terminal=True, width=200)
    table = summary._grid()
    summary._row(table, "class", NAME)
    console.print(table)
    bare = Table.grid()
    bare.add_row(Text(NAME, style="bold red"), NAME)
    console.print(bare)
    console.print(Text(NAME), soft_wrap=True)
    record = logging.makeLogRecord({"msg": NAME, "levelno": logging.WARNING, "levelname": "WARNING"})
    RichHandler(console=console).emit(record)
    written = out.getvalue()
    assert COLOUR.search(written), "colours of ours are kept"
    assert not UNSAFE.search(COLOUR.sub("", written).replace("\n", ""))
    assert written.count("\\u202e") >= 3


def test_a_member_of_an_archive(tmp_path: Path) -> None:
    name = "../" + NAME.rstrip("\udcff")
    with tarfile.open(tmp_path / "images.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo(name))
    with pytest.raises(DataError) as refused:
        unpack(tmp_path / "images.tar", tmp_path / "unpacked")
    assert "\\u202e" in str(refused.value)
    assert not UNSAFE.search(str(refused.value).replace("\n", ""))


def test_the_command_line(tmp_path: Path) -> None:
    """A class and a file with such names, and an argument that no subcommand has."""
    images = tmp_path / "images" / "cat\x1b[2K\u202egnp"
    images.mkdir(parents=True)
    (images / "a\x9b31m\n12:00:00 promoted.png").write_bytes(b"")
    for given_to in (
        ["plan", "digits", "--set", f"data.path={tmp_path / 'images'}"],
        ["plan", "digits", f"--{NAME[:20]}"],
    ):
        done = subprocess.run(
            [sys.executable, "-m", "flows.cli.main", *given_to], capture_output=True, check=False, timeout=120
        )
        said = done.stderr.decode()
        assert done.returncode in (2, 3)
        assert "\\u202e" in said
        assert not UNSAFE.search(said.replace("\n", ""))
        assert not re.search("^12:00:00", said, re.MULTILINE)
