"""docs/extending.md, docs/contracts.md and ARCHITECTURE.md name files and names that exist."""

import re
from pathlib import Path

import pytest

import evergreen

ROOT = Path(evergreen.__file__).parents[1]
PAGES = ("docs/extending.md", "ARCHITECTURE.md")
FILE = re.compile(r"`([a-z_]+/[\w./]*)`")
NAME = re.compile(r"`(\w+)(?:\(\))?` (?:of|in) `([a-z_]+/[\w./]+\.py)`")


@pytest.mark.parametrize("page", ["docs/extending.md", "docs/contracts.md", "ARCHITECTURE.md"])
def test_every_file_that_the_page_names_exists(page: str) -> None:
    named = set(FILE.findall((ROOT / page).read_text()))
    assert len(named) > 25
    # ARCHITECTURE.md names some folders within the folder that the row is about.
    within = ("", "training/trainers", "tasks", "tasks/report_page") if page == "ARCHITECTURE.md" else ("",)
    assert not [name for name in named if not any((ROOT / folder / name).exists() for folder in within)]


@pytest.mark.parametrize("page", PAGES)
def test_every_name_that_the_page_gives_of_a_file_is_in_the_file(page: str) -> None:
    named = set(NAME.findall((ROOT / page).read_text()))
    assert len(named) > 5
    assert not [
        (name, file) for name, file in named if not re.search(rf"\b{name}\b", (ROOT / file).read_text())
    ]
