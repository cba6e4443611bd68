"""The source of tables that are installed with scikit-learn, for recipes and tests that need no download."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from training.data.sources.installed import content_of, installed_file
from training.data.sources.table import Table
from training.errors import DataError, SettingError
from training.records import ColumnKind, SourceFiles
from training.storage.files import write_text


class _Bundled(NamedTuple):
    """How scikit-learn stores a table.

    `files` are read side by side: the features, then the target. `first_line` is the number of lines that hold no row.
    `classes` are the names of the classes 0, 1, ... of the target; empty for a number.
    """

    files: tuple[str, ...]
    features: tuple[str, ...]
    target: str
    first_line: int = 0
    classes: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()


_OF_A_CELL = (
    "radius", "texture", "perimeter", "area", "smoothness", "compactness", "concavity", "concave points", "symmetry",
    "fractal dimension",
)  # fmt: skip
_TABLES = {
    # 442 patients; the target measures how far the disease has progressed after a year. B. Efron et al., "Least Angle
    # Regression", Annals of Statistics 32 (2004), 407-499.
    "diabetes": _Bundled(
        files=("diabetes_data_raw.csv.gz", "diabetes_target.csv.gz"),
        features=("age", "sex", "bmi", "bp", "s1", "s2", "s3", "s4", "s5", "s6"),
        target="progression",
        categories=("sex",),
    ),
    # 569 samples of breast tissue. W. N. Street et al., "Nuclear feature extraction for breast tumor diagnosis",
    # IS&T/SPIE Electronic Imaging, 1993.
    "breast_cancer": _Bundled(
        files=("breast_cancer.csv",),
        features=(
            *(f"mean {name}" for name in _OF_A_CELL),
            *(f"{name} error" for name in _OF_A_CELL),
            *(f"worst {name}" for name in _OF_A_CELL),
        ),
        target="diagnosis",
        first_line=1,
        classes=("malignant", "benign"),
    ),
}


@dataclass(frozen=True)
class BundledTable:
    """A table that is installed with scikit-learn: "diabetes" (a number to predict) or "breast_cancer" (two classes).

    Raises :class:`SettingError` for another name.
    """

    name: str

    def __post_init__(self) -> None:
        if self.name not in _TABLES:
            raise SettingError(
                f"BundledTable({self.name!r}): no such table; take one of {', '.join(_TABLES)}"
            )

    def fetch(self, folder: Path) -> SourceFiles:
        """Write the table as a CSV file to `folder`, and read it as :class:`Table` does.

        Raises :class:`DataError` when scikit-learn's files are missing or damaged.
        """
        file = folder / f"{self.name}.csv"
        text = _as_csv(_TABLES[self.name])
        if not file.is_file() or file.read_text(encoding="utf-8") != text:
            write_text(file, text)
        files = self._table(file).fetch(folder)
        return files.model_copy(update={"origin": f"scikit-learn's {self.name}"})

    def _table(self, file: Path) -> Table:
        kinds: dict[str, ColumnKind] = dict.fromkeys(_TABLES[self.name].categories, "category")
        return Table(file, _TABLES[self.name].target, types=kinds)

    def count(self, files: SourceFiles, split: str) -> int:
        """Number of rows; the table has no splits."""
        return self._table(Path(files.root)).count(files, split)

    def splits(self, files: SourceFiles) -> Sequence[str]:
        """("",): the table has no splits."""
        return self._table(Path(files.root)).splits(files)

    def read(self, files: SourceFiles, split: str, rows: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """Raw rows, as :meth:`Table.read` gives them."""
        return self._table(Path(files.root)).read(files, split, rows)


def _as_csv(bundled: _Bundled) -> str:
    """The text of a CSV file with named columns; numbers are written as scikit-learn's files have them."""
    columns = [_cells(installed_file(name), bundled.first_line) for name in bundled.files]
    if len({len(rows) for rows in columns}) != 1:
        raise DataError(
            f"{' and '.join(bundled.files)}: not the same number of rows. Install scikit-learn again."
        )
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow((*bundled.features, bundled.target))
    for number, parts in enumerate(zip(*columns, strict=True)):
        cells = [cell for part in parts for cell in part]
        if len(cells) != len(bundled.features) + 1:
            raise DataError(
                f"{bundled.files[0]} row {number}: {len(cells)} values. Install scikit-learn again."
            )
        if bundled.classes:
            cells[-1] = bundled.classes[int(cells[-1])]
        writer.writerow(cells)
    return out.getvalue()


def _cells(file: Path, first_line: int) -> list[list[str]]:
    lines = content_of(file).decode().splitlines()[first_line:]
    return [line.replace(",", " ").split() for line in lines]
