"""What the error of a version that is not loaded tells the user to do."""

from pathlib import Path

import pytest
from mlflow.models import Model

from tasks.registry.safe_loading import check_files
from training.errors import DataError


@pytest.mark.parametrize(
    ("model", "argument"),
    [("leaves", "leaves"), ("my leaves", "'my leaves'"), ("my version 2", "'my version 2'")],
)
def test_the_remedy_names_the_whole_model(tmp_path: Path, model: str, argument: str) -> None:
    Model(flavors={"other": {}}).save(str(tmp_path / "MLmodel"))
    with pytest.raises(DataError, match=f"its flavors are other.*`evergreen rollback {argument}`"):
        check_files(tmp_path, f"model {model} version 3", {})
