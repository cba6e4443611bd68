"""A language model in the real flow: judged by perplexity, registered, loaded by plain MLflow, rolled back."""

import subprocess
import sys
from pathlib import Path

import pytest
from registered import rows_of
from small_language_models import GPT2, write_lines

from flows.retrain import retrain
from tasks import predict as predict_step
from tasks.registry.aliases import champion_of
from tasks.rollback import rollback
from tasks.trackers.mlflow_run import connect
from tasks.verify import verify
from training.records import Release
from training.storage.paths import Home

for library in ("tokenizers", "transformers"):
    pytest.importorskip(library, reason="install the extras by: make setup EXTRAS=all")
pytestmark = [pytest.mark.frameworks, pytest.mark.slow, pytest.mark.usefixtures("prefect_harness")]

_PLAIN = """
import sys, mlflow, numpy as np
from tokenizers import Tokenizer
mlflow.set_tracking_uri(sys.argv[1])
folder = mlflow.artifacts.download_artifacts("models:/films@champion")
tokenizer = Tokenizer.from_file(f"{folder}/extra_files/tokenizer.json")
ids = np.array([tokenizer.encode(text).ids for text in sys.argv[2:]])
for loss, tokens in mlflow.pyfunc.load_model(folder).predict(ids).tolist():
    print(loss, tokens)
tops = {name.partition(".")[0] for name in sys.modules}
assert not tops & {"training", "tasks", "flows", "evergreen"}, tops  # MLflow itself may import Transformers
"""
TEXTS = ["the film is funny", "a dull story with music"]


def night(folder: Path, epochs: int) -> Release:
    return retrain(
        str(folder / "films.py"),
        {
            "data": {"max_tokens": 16, "vocabulary": 300},
            "scaling": {"num_workers": 0, "use_gpu": "no"},
            "training": {"epochs": epochs},
            "tracking": {"system_metrics": False},
        },
    )


def test_a_better_language_model_becomes_champion_and_is_rolled_back(home: Home, tmp_path: Path) -> None:
    (tmp_path / "films.py").write_text(GPT2)
    write_lines(tmp_path / "films.txt", 400)
    first = night(tmp_path, 1)
    write_lines(tmp_path / "films.txt", 600)  # so the tokenizer differs, too
    second = night(tmp_path, 8)
    assert (first.alias, second.alias, second.version) == ("champion", "champion", "2")
    assert second.metrics["perplexity_low"] < second.metrics["perplexity"] < second.metrics["perplexity_high"]
    assert second.metrics["perplexity_high"] < second.metrics["champion_perplexity"]
    assert [
        finding.name for finding in verify(home.run("films", second.run_key), home) if finding.ok is False
    ] == []

    page = Path(second.report).read_text()
    assert "Worst texts" in page
    assert page.count('<td class="soft text">') == 24

    code = [sys.executable, "-c", _PLAIN, home.mlflow_uri, *TEXTS]
    said = subprocess.run(code, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    plain = [tuple(map(float, line.split())) for line in said.splitlines()]
    (tmp_path / "new.txt").write_text("\n".join(TEXTS) + "\n")
    output = tmp_path / "out.parquet"
    summary = predict_step.predict.fn(str(home.root), "films", str(tmp_path / "new.txt"), str(output))
    rows = rows_of(output)
    assert [row["tokens"] for row in rows] == [int(tokens) for _, tokens in plain]
    assert [row["loss_per_token"] for row in rows] == pytest.approx([loss for loss, _ in plain], abs=1e-5)
    nats, tokens = sum(loss * count for loss, count in plain), sum(count for _, count in plain)
    assert summary.mean == pytest.approx(nats / tokens, abs=1e-5)

    assert rollback.fn(str(home.root), "films", "for a test") == ("2", "1")
    assert champion_of(connect(None, home), "films") == "1"
