"""docs/reference.md and the table of docs/frameworks.md are what the code says."""

import runpy
from pathlib import Path

import pytest

import evergreen

DOCS = Path(evergreen.__file__).parents[1] / "docs"


def test_the_page_is_current() -> None:
    made = runpy.run_path(str(DOCS / "make_reference.py"))["reference"]()
    assert (DOCS / "reference.md").read_text() == made, "run `make reference`"


def test_the_table_of_frameworks_is_current() -> None:
    made = runpy.run_path(str(DOCS / "make_frameworks.py"))["page"]
    text = (DOCS / "frameworks.md").read_text()
    assert text == made(text), "run `make reference`"
    with pytest.raises(ValueError, match="begin of the table"):
        made("# A page without a table")


def test_each_public_name_has_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = runpy.run_path(str(DOCS / "make_reference.py"))["reference"]
    monkeypatch.setattr(evergreen, "__all__", [*evergreen.__all__, "NewTrainer"])
    with pytest.raises(ValueError, match="NewTrainer"):
        reference()
