"""A table with columns of all kinds, and predictions from its raw columns by plain MLflow, in another process."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from small_runs import prepared

from training.data.manifest import read_parts
from training.data.sources.table import Table
from training.records import DatasetVersion, ProblemName
from training.storage.paths import Home

# argv: the model's folder, a Parquet file with the raw rows, a folder for the predictions.
_PREDICT = """
import sys
for name in ("training", "tasks", "flows", "evergreen"):
    sys.modules[name] = None  # so that importing it fails
import mlflow.pyfunc, numpy, pandas
model = mlflow.pyfunc.load_model(sys.argv[1])
rows = pandas.read_parquet(sys.argv[2]).iloc[:, ::-1]  # the order of the columns makes no difference
for number, count in enumerate((1, 3, len(rows))):
    numpy.save(f"{sys.argv[3]}/{number}.npy", model.predict(rows[:count]))
"""


def every_kind(home: Home, problem: ProblemName, rows: int = 400) -> DatasetVersion:
    """A dataset version of the rows of :func:`write_every_kind`."""
    file = write_every_kind(home.root / "every.csv", problem, rows)
    return prepared(home, Table(file, "price"), "every", problem=problem)


def write_every_kind(file: Path, problem: ProblemName, rows: int = 400) -> Path:
    """A CSV of random rows with a column of each kind, with missing values and text that is not ASCII."""
    random = np.random.default_rng(0)
    weight, town = random.uniform(0, 12, rows).round(3), random.choice(["Köln", "Ōsaka", "Ulm"], rows)
    fragile = random.random(rows) < 0.3
    days = (np.datetime64("2023-06-01") + random.integers(0, 300, rows)).astype(str)
    price = (3 * weight + 5 * fragile + 4 * (town == "Ulm") + random.normal(0, 0.5, rows)).round(2)
    table = pd.DataFrame(
        {
            "weight": weight,
            "count": random.integers(0, 9, rows),
            "town": town,
            "fragile": fragile.astype(object),
            "sent": days,
            "seen": [
                f"{day}T{hour:02d}:30:00"
                for day, hour in zip(days, random.integers(0, 24, rows), strict=True)
            ],
        }
    )
    for number, name in enumerate(("weight", "town", "fragile", "sent")):
        table.loc[number::11, name] = None
    table["price"] = price if problem == "regression" else np.where(price > 20, "dear", "cheap")
    file.parent.mkdir(parents=True, exist_ok=True)
    table.to_csv(file, index=False)
    return file


def raw_rows(version: DatasetVersion) -> pd.DataFrame:
    """The features of the test rows, with the types of part files."""
    assert version.table is not None
    names = [column.name for column in version.table.raw.columns]
    parts = pa.concat_tables(read_parts(version, "test", [f"feature.{name}" for name in names]))
    frame: pd.DataFrame = parts.rename_columns(names).to_pandas()
    return frame


def predicted_elsewhere(folder: Path, rows: pd.DataFrame, aside: Path) -> list[npt.NDArray[Any]]:
    """Predictions for the first row, the first three rows and all rows, by MLflow without Evergreen."""
    rows.to_parquet(aside / "rows.parquet")
    done = subprocess.run(
        [sys.executable, "-I", "-c", _PREDICT, str(folder), str(aside / "rows.parquet"), str(aside)],
        cwd=aside,
        env={"PATH": "/usr/bin:/bin", "HOME": str(aside), "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return [np.load(aside / f"{number}.npy") for number in range(3)]
