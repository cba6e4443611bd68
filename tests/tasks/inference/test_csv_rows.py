"""Predictions as CSV, read again by Python's own reader."""

import csv
from pathlib import Path

import numpy as np
import pytest

from tasks.inference.prediction_files import PredictionWriter, check_places, is_csv, is_one_file, staged
from tasks.problems.classification.outputs import ClassOutputs
from training.errors import SettingError

CLASSES = ("cat", 'dog, "big"')


def written(output: Path, where: list[str], group_rows: int = 0) -> list[dict[str, str]]:
    probabilities = np.stack([np.linspace(0.9, 0.1, len(where)), np.linspace(0.1, 0.9, len(where))], axis=1)
    with staged(output, overwrite=False) as aside:
        writer = PredictionWriter(
            aside, is_one_file(output), ClassOutputs(CLASSES), "pets", "7", group_rows, as_csv=is_csv(output)
        )
        for at in range(len(where)):
            row = slice(at, at + 1)
            writer.write(np.array(where[row], object), probabilities[row].astype(np.float32))
        writer.close()
    with output.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


@pytest.mark.parametrize("group_rows", [0, 2])
def test_each_input_is_a_row_with_a_column_for_each_class(tmp_path: Path, group_rows: int) -> None:
    where = ["a.png", 'b, "new".png', "c\nd.png", "Köln.png", "=1+1.png"]
    rows = written(tmp_path / "OUT.CSV", where, group_rows)
    assert [row["where"] for row in rows] == where
    assert list(rows[0]) == [
        *("where", "class", "probability"),
        *("probabilities.cat", 'probabilities.dog, "big"', "model", "version"),
    ]
    assert [row["class"] for row in rows] == [CLASSES[0]] * 3 + [CLASSES[1]] * 2
    assert [float(row["probabilities.cat"]) for row in rows] == pytest.approx([0.9, 0.7, 0.5, 0.3, 0.1])
    assert {(row["model"], row["version"]) for row in rows} == {("pets", "7")}


@pytest.mark.parametrize("name", ["out.tsv", "out.json", "out.csv.gz", "out.XLSX"])
def test_another_format_is_refused_by_its_ending(tmp_path: Path, name: str) -> None:
    (tmp_path / "images").mkdir()
    with pytest.raises(SettingError, match=r"which is not written\. A name that ends in \.parquet or \.csv"):
        check_places(tmp_path / "images", tmp_path / name, overwrite=False)


def test_an_existing_csv_is_replaced_only_when_allowed(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    (tmp_path / "out.csv").write_text("of an earlier time")
    with pytest.raises(SettingError, match="exists"):
        check_places(tmp_path / "images", tmp_path / "out.csv", overwrite=False)
    check_places(tmp_path / "images", tmp_path / "out.csv", overwrite=True)


@pytest.mark.parametrize("name", ["out", "out.2026-11-28", "v1.2"])
def test_other_names_are_folders(tmp_path: Path, name: str) -> None:
    (tmp_path / "images").mkdir()
    check_places(tmp_path / "images", tmp_path / name, overwrite=False)
    assert not is_one_file(tmp_path / name)
