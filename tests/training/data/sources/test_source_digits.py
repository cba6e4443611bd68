"""scikit-learn's digits are read without importing scikit-learn."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from training.data.sources.digits import Digits
from training.errors import DataError
from training.records import SourceFiles


def test_pixels_and_labels_are_scikit_learns(tmp_path: Path, rows_of, pixels_of) -> None:
    files = Digits().fetch(tmp_path)
    rows = rows_of(files, "")
    known = load_digits()
    assert len(rows) == 1797
    assert [row["label"] for row in rows] == [str(label) for label in known.target]
    expected = np.rint(known.images * 255 / 16).astype(np.uint8)
    assert all(
        np.array_equal(pixels_of(row)[..., 0], image) for row, image in zip(rows, expected, strict=True)
    )
    assert expected.max() == 255
    assert rows[1796]["where"].endswith("row 1796")
    assert list(tmp_path.iterdir()) == []


def test_scikit_learn_is_not_imported() -> None:
    code = (
        "import sys; from pathlib import Path; from training.data.sources.digits import Digits; "
        "source = Digits(); files = source.fetch(Path('.')); source.count(files, ''); "
        "sys.exit(bool({'sklearn', 'torch', 'scipy', 'pandas'} & sys.modules.keys()))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("content", [b"", b"\x1f\x8b damaged"])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "digits.csv.gz").write_bytes(content)
    files = SourceFiles(kind="digits", root=str(tmp_path), origin="", digest="", files=1, bytes=0)
    with pytest.raises(DataError, match=r"digits\.csv\.gz"):
        Digits().count(files, "")
