"""A recipe with `transform_rows`, from training to prediction: the same function changes the rows of both."""

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image
from small_runs import write_recipe

from flows.retrain import retrain
from tasks import predict as step
from tasks.registry.aliases import load_version, version_tags
from tasks.registry.safe_loading import TRANSFORM_TAG
from tasks.trackers.mlflow_run import connect
from training.errors import DataError, SettingError
from training.recipe import load
from training.storage.paths import Home

pytestmark = pytest.mark.usefixtures("prefect_harness")

SETTINGS = {
    "training": {"epochs": 2},
    "scaling": {"num_workers": 0},
    "tracking": {"system_metrics": False},
}


@pytest.mark.extended
def test_predict_applies_the_function_of_the_run_and_another_function_is_not_compared(
    home: Home, tmp_path: Path
) -> None:
    file = Path(write_recipe(tmp_path, name="inverted"))
    changed = file.read_text().replace(
        "build_model=build_model", "build_model=build_model, transform_rows=invert"
    )
    file.write_text("from rows import invert\n" + changed)
    (tmp_path / "rows.py").write_text("def invert(images):\n    return 16 - images\n")
    retrain(str(file), SETTINGS)
    assert version_tags(connect(None, home), "inverted", "1")[TRANSFORM_TAG] == load(str(file))[1].transform

    pixels = np.random.default_rng(3).integers(0, 17, (20, 8, 8), np.uint8)
    (tmp_path / "images").mkdir()
    for number, image in enumerate(pixels):
        Image.fromarray(image).save(tmp_path / "images" / f"{number:02d}.png")
    step.predict.fn(str(home.root), "inverted", str(tmp_path / "images"), str(tmp_path / "out.parquet"))
    predicted = pq.read_table(tmp_path / "out.parquet")
    model = load_version(home, "inverted", "1")
    probabilities = np.stack(predicted["probabilities"].to_numpy())
    assert np.allclose(probabilities, model.predict(16 - pixels[:, None]), atol=1e-6)
    assert not np.allclose(probabilities, model.predict(pixels[:, None]), atol=1e-3)

    client = connect(None, home)
    client.delete_model_version_tag("inverted", "1", TRANSFORM_TAG)
    with pytest.raises(DataError, match="not known how the model's rows are changed"):
        step.predict.fn(str(home.root), "inverted", str(tmp_path / "images"), str(tmp_path / "wrong.parquet"))
    client.set_model_version_tag("inverted", "1", TRANSFORM_TAG, load(str(file))[1].transform)

    (tmp_path / "rows.py").write_text("def invert(images):\n    return 17 - images\n")
    with pytest.raises(
        SettingError, match=r"transform_rows: champion inverted version 1 learned from rows of another"
    ):
        retrain(str(file), SETTINGS)
