"""What every framework's model must do in the real flow: registered, predicts, in plain MLflow, rolled back."""

import json
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from PIL import Image
from sklearn.datasets import load_digits

from flows.preview import preview
from flows.retrain import retrain
from tasks import predict
from tasks.registry.aliases import champion_of
from tasks.rollback import rollback
from tasks.trackers.mlflow_run import connect
from tasks.verify import verify
from training.records import Release
from training.storage.paths import Home

NAME = "framework"  # of the recipe, and so of the model
_OWN_PACKAGES = ("evergreen", "flows", "tasks", "training")
_PLAIN = """
import sys, numpy as np

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in sys.argv[4:]:
            raise ModuleNotFoundError(f"{name} is blocked", name=name)

sys.meta_path.insert(0, Blocked())
import mlflow
mlflow.set_tracking_uri(sys.argv[1])
model = mlflow.pyfunc.load_model("models:/framework@champion")
images = np.load(sys.argv[2])
np.save(sys.argv[3], model.predict(images))
for rows in (1, 3, 64):
    answer = model.predict(images[:rows])
    assert answer.shape == (rows, 10)
    assert np.allclose(answer.sum(1), 1, atol=1e-5)
"""


def night(recipe: str, **training: Any) -> Release:
    """Retrain in this process; a candidate that is not much worse is promoted."""
    gate = {"floor": 0.0, "policy": "not_worse", "margin": 0.9, "max_class_drop": 0.99}
    sections = {"scaling": {"num_workers": 0}, "tracking": {"system_metrics": False}, "gate": gate}
    return retrain(recipe, {"training": training, **sections})


def check_digits(
    home: Home, folder: Path, recipe: str, distribution: str, blocked: Sequence[str], least: float = 0.7
) -> None:
    """Retrain the recipe file of the text `recipe`, for scikit-learn's digits, and use the model.

    The share of digits that the model predicts must exceed `least`, and the version of `distribution` must be in the
    run key. Plain MLflow loads the model where the libraries `blocked` can't be imported.
    """
    file = folder / f"{NAME}.py"
    file.write_text(recipe)
    assert preview(str(file), {}, home).first
    first = night(str(file), epochs=2)
    assert first.alias == "champion"
    assert Path(first.report).is_file()
    plan = json.loads(home.run(NAME, first.run_key).ingredients.read_text())
    assert version(distribution) in json.dumps(plan["ingredients"]["versions"])

    scans = (load_digits().images * 255 / 16).astype(np.uint8)[:100]
    pictures, scored = folder / "pictures", folder / "scored.parquet"
    pictures.mkdir()
    for number, scan in enumerate(scans):
        Image.fromarray(scan).save(pictures / f"{number:03}.png")
    predict.predict.fn(str(home.root), NAME, str(pictures), str(scored))
    rows = pq.read_table(scored).to_pylist()
    right = [row["class"] == str(digit) for row, digit in zip(rows, load_digits().target, strict=False)]
    assert np.mean(right) > least

    np.save(folder / "images.npy", scans[:, None])
    files = [str(folder / name) for name in ("images.npy", "answers.npy")]
    command = [sys.executable, "-c", _PLAIN, home.mlflow_uri, *files, *_OWN_PACKAGES, *blocked]
    subprocess.run(command, cwd=folder, check=True)
    assert np.allclose(np.load(files[1]), [row["probabilities"] for row in rows], atol=1e-6)
    check_next_night(home, NAME, night(str(file), epochs=3))


def check_next_night(home: Home, model: str, second: Release) -> None:
    """The second version is promoted and verified; then the model is rolled back."""
    assert (second.version, second.alias) == ("2", "champion")
    assert [
        finding.name for finding in verify(home.run(model, second.run_key), home) if finding.ok is False
    ] == []
    assert rollback.fn(str(home.root), model, "for a test") == ("2", "1")
    assert champion_of(connect(None, home), model) == "1"
