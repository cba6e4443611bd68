"""A table of rows that a program generated with Ray Data and wrote as Parquet."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_runs import prepared

from training.data.dataset import open_columns
from training.data.sources.table import Table
from training.storage.paths import Home


@pytest.mark.extended
def test_rows_that_ray_data_generated_are_a_table(home: Home, ray_session: None, tmp_path: Path) -> None:
    import ray.data

    def with_target(batch: dict[str, Any]) -> dict[str, Any]:
        return {"x": batch["id"] / 7.0, "y": 2.0 * batch["id"]}

    folder = tmp_path / "generated"
    ray.data.range(120, override_num_blocks=3).map_batches(with_target).write_parquet(str(folder))
    assert len(list(folder.glob("*.parquet"))) == 3
    version = prepared(home, Table(str(folder), target="y"), "generated", problem="regression")
    targets = [open_columns(version, split).targets for split in ("train", "test")]
    assert sorted(np.concatenate(targets).tolist()) == [2.0 * number for number in range(120)]
