"""Rows that the report shows as examples are read from all part files of the test split."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from small_tables import described, values

from tasks.report_page import examples
from tasks.report_page.wording import NOTHING
from training.data.tables.values import FEATURE


def test_examples_are_found_although_some_parts_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    version = described(values())
    names = [f"{FEATURE}{name}" for name in ("size", "colour", "day")]

    def parts(*_: Any) -> Iterator[pa.Table]:
        for first in (0, 2, 4):
            rows = [[first, first + 1], ["red", None], [1.5, 2.25]]
            yield pa.table(dict(zip(names, rows, strict=True)))

    monkeypatch.setattr(examples, "read_parts", parts)
    assert examples.texts_of(version, [3, 2]) == (("3", NOTHING, "2.25"), ("2", "red", "1.5"))
