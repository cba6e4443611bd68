"""The recipe dreambooth in the real flow, in one process: judged by its noise error, registered, its images shown."""

import subprocess
import sys
from pathlib import Path

import pytest
from registered import rows_of

from flows.retrain import retrain
from tasks import predict as predict_step
from tasks.registry.aliases import champion_of
from tasks.rollback import rollback
from tasks.trackers.mlflow_run import connect
from tasks.verify import verify
from training.records import Release
from training.storage.paths import Home

for library in ("diffusers", "transformers", "accelerate"):
    pytest.importorskip(library, reason="install the extras by: make setup EXTRAS=all")
pytestmark = [pytest.mark.frameworks, pytest.mark.usefixtures("prefect_harness")]

DIGITS = Path(__file__).parents[2] / "docs" / "dreambooth_digits.py"
_PLAIN = """
import sys, mlflow, numpy as np
from PIL import Image
mlflow.set_tracking_uri(sys.argv[1])
images = np.stack([np.asarray(Image.open(name))[None] for name in sys.argv[2:]])
for errors in mlflow.pyfunc.load_model("models:/dreambooth@champion").predict(images).tolist():
    print(*errors)
tops = {name.partition(".")[0] for name in sys.modules}
assert not tops & {"training", "tasks", "flows", "evergreen"}, tops  # MLflow itself may import Transformers
"""


def night(data: Path, epochs: int) -> Release:
    return retrain(
        "dreambooth",
        {
            "data": {"path": str(data), "image_size": 8, "max_train_rows": 600},
            "scaling": {"num_workers": 0, "use_gpu": "no"},
            "training": {"epochs": epochs},
            "tracking": {"system_metrics": False},
        },
    )


def test_a_better_model_of_a_subject_becomes_champion_and_is_rolled_back(home: Home, tmp_path: Path) -> None:
    data = tmp_path / "nines"
    subprocess.run([sys.executable, DIGITS, data], check=True)
    first, second = night(data, 1), night(data, 8)
    assert (first.alias, second.alias, second.version) == ("champion", "champion", "2")
    metrics = second.metrics
    assert metrics["noise_error_low"] < metrics["noise_error"] < metrics["noise_error_high"]
    assert metrics["noise_error_high"] < metrics["champion_noise_error"] < 1
    assert [
        finding.name
        for finding in verify(home.run("dreambooth", second.run_key), home)
        if finding.ok is False
    ] == []

    page = Path(second.report).read_text()
    for section in ("Generated images", "Errors by class", "Largest errors"):
        assert f"{section}</h2>" in page
    assert page.count('alt="Generated image ') == 16
    assert (Path(second.report).parent / "figures" / "generated.png").is_file()

    files = sorted((data / "subject").glob("*.png"))[:3]
    code = [sys.executable, "-c", _PLAIN, home.mlflow_uri, *map(str, files)]
    said = subprocess.run(code, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    plain = [list(map(float, line.split())) for line in said.splitlines()]
    output = tmp_path / "out.parquet"
    predict_step.predict.fn(str(home.root), "dreambooth", str(data / "subject"), str(output))
    rows = rows_of(output)[:3]
    assert [row["noise_errors"] for row in rows] == [pytest.approx(errors, abs=1e-4) for errors in plain]
    assert all(row["noise_error"] == min(row["noise_errors"]) for row in rows)

    assert rollback.fn(str(home.root), "dreambooth", "for a test") == ("2", "1")
    assert champion_of(connect(None, home), "dreambooth") == "1"
