"""What is found wrong with a table before preparation: the same as preparation finds."""

from pathlib import Path
from typing import Any

import pytest
from small_runs import prepared_from

from training.data.sources.table import Table
from training.data.tables.table_check import check_table
from training.errors import DataError
from training.records import ProblemName
from training.settings.schema import DataSettings
from training.storage.paths import Home

REFUSED: list[tuple[str, ProblemName, dict[str, Any]]] = [
    ("a,y\n" + "1,x\n2,y\n" * 20 + "3,\n" * 7, "classification", {}),
    ("a,y\n" + "1,x\n2,y\n" * 20, "regression", {}),
    ("a,y\n" + "1,x\n2,x\n" * 20, "classification", {}),
    ("a,y\n" + "".join(f"{n},{n}.5\n" for n in range(200)), "classification", {}),
    ("a,y\n" + "1,175928847299117063\n2,175928847299117064\n" * 20, "classification", {}),
    ("a,s,y\n1,train,x\n2,train,y\n3,test,x\n", "classification", {"split": "s"}),
]


@pytest.mark.parametrize(("text", "problem", "options"), REFUSED)
def test_plan_refuses_what_preparation_refuses(
    home: Home, tmp_path: Path, text: str, problem: ProblemName, options: dict[str, Any]
) -> None:
    (tmp_path / "rows.csv").write_text(text)
    files = Table(tmp_path / "rows.csv", target="y", **options).fetch(home.sources)
    with pytest.raises(DataError) as early:
        check_table(files, DataSettings(), problem)
    with pytest.raises(DataError) as late:
        prepared_from(home, files, "rows", DataSettings(), problem)
    # Preparation writes a list of all bad rows, and says so.
    assert str(late.value).replace(f", all listed in {_listing(home)}", "") == str(early.value)


def _listing(home: Home) -> str:
    return next((str(file) for file in (home.root / "refused").rglob("*.csv")), "nowhere")


def test_a_good_table_has_the_columns_of_the_prepared_table(home: Home, tmp_path: Path) -> None:
    lines = [f"{n},{'uv'[n % 2]},{'xyz'[n % 3] if n else ''}\n" for n in range(100)]
    (tmp_path / "rows.csv").write_text("a,b,y\n" + "".join(lines))
    files = Table(tmp_path / "rows.csv", target="y").fetch(home.sources)
    settings = DataSettings(max_dropped_share=0.01)
    early = check_table(files, settings, "classification")
    late = prepared_from(home, files, "rows", settings).table
    assert late is not None
    assert [(column.name, column.kind) for column in early.columns] == [
        (column.name, column.kind) for column in late.columns
    ]
    assert early.target == late.target == "y"
