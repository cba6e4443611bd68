"""A recipe with metrics of TorchMetrics, from training to report: the test rows' values by scikit-learn."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import f1_score
from small_runs import write_recipe

from flows.cli.summary import print_release
from flows.retrain import retrain
from tasks.registry.aliases import load_version
from tasks.trackers.mlflow_run import connect
from tasks.verify import verify
from training.data.columns import open_columns
from training.data.manifest import read_manifest
from training.storage.paths import Home

pytest.importorskip("torchmetrics", reason="install the extras by: make setup EXTRAS=all")
pytestmark = [pytest.mark.frameworks, pytest.mark.slow, pytest.mark.usefixtures("prefect_harness")]

SETTINGS = {
    "training": {"epochs": 2},
    "scaling": {"num_workers": 0},
    "tracking": {"system_metrics": False},
    "gate": {"floor": 0.1},
}
BUILD_F1 = """

def build_f1(outputs):
    from torchmetrics.classification import MulticlassF1Score
    return MulticlassF1Score(outputs, average="macro")


recipe = Recipe("""


def test_metrics_are_in_mlflow_once_and_in_the_report(
    home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = Path(write_recipe(tmp_path, name="measured"))
    retrain(str(file), SETTINGS)  # the champion: its own release had no such metric
    text = file.read_text().replace("\nrecipe = Recipe(", BUILD_F1)
    file.write_text(
        text.replace("build_model=build_model", "build_model=build_model, metrics={'f1': build_f1}")
    )
    release = retrain(str(file), SETTINGS | {"training": {"epochs": 3}})

    version = read_manifest(
        home.dataset("measured", release.dataset_fingerprint), release.dataset_fingerprint
    )
    test = open_columns(version, "test")
    for name, number in (("f1", "2"), ("champion_f1", "1")):
        predicted = load_version(home, "measured", number).predict(np.array(test.inputs)).argmax(1)
        assert release.metrics[name] == pytest.approx(
            f1_score(test.targets, predicted, average="macro"), abs=1e-5
        )
    assert release.recipe_metrics == ("f1",)

    client = connect(None, home)
    points = client.get_metric_history(release.mlflow_run_id, "validation/f1")
    assert [point.step for point in points] == sorted({point.step for point in points})
    assert len(points) == 3
    assert all(finding.ok is not False for finding in verify(home.run("measured", release.run_key), home))

    print_release(release)
    assert f"test f1 {release.metrics['f1']:.4g} champion {release.metrics['champion_f1']:.4g}" in " ".join(
        capsys.readouterr().out.split()
    )
    assert "metric of the recipe" in Path(release.report).read_text()
