"""What users find in MLflow: the origin of a run, the description of a version, and weights for fine-tuning."""

import getpass
import json
import os
import subprocess
from pathlib import Path
from uuid import UUID

import mlflow
import pytest
import torch
from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.entities.model_registry import ModelVersion
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId
from safetensors.torch import load_file
from small_runs import write_recipe

from flows.retrain import retrain
from tasks.report_page.wording import reason
from tasks.trackers.mlflow_run import connect
from tasks.trackers.provenance import FLOW_RUN_TAG
from training.checkpoints.weights import weights_digest
from training.errors import DataError
from training.recipe import load
from training.records import Release
from training.storage.paths import Home


class Made:
    """One retraining of a recipe in a git repository."""

    def __init__(self, folder: Path):
        self.home, self.recipe = Home(folder / "home"), write_recipe(folder / "repository")
        self.commit = _committed(Path(self.recipe).parent)
        settings = {
            "training": {"epochs": 1},
            "scaling": {"num_workers": 0},
            "gate": {"baseline": False},
            "tracking": {"system_metrics": False},
        }
        self.release: Release = retrain(self.recipe, settings, data_path=None)
        self.client: MlflowClient = connect(None, self.home)

    @property
    def run(self) -> Run:
        return self.client.get_run(self.release.mlflow_run_id)

    @property
    def version(self) -> ModelVersion:
        return self.client.get_model_version(self.release.model, self.release.version)


def _committed(folder: Path) -> str:
    """Create a repository with all files; returns the id of its commit."""

    def git(*command: str) -> str:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        ours = os.environ | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
        done = subprocess.run(
            ["git", *who, *command], cwd=folder, env=ours, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    git("init", "-q")
    git("add", "-A")
    git("commit", "-qm", "recipe")
    return git("rev-parse", "HEAD")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, prefect_harness: None) -> Made:
    folder = tmp_path_factory.mktemp("lineage")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EVERGREEN_HOME", str(folder / "home"))
        return Made(folder)


@pytest.mark.extended
def test_train_and_test_rows_are_inputs_with_source_schema_and_counts(made: Made) -> None:
    inputs = {
        dataset_input.dataset.name: (
            dataset_input.dataset,
            {tag.key: tag.value for tag in dataset_input.tags},
        )
        for dataset_input in made.run.inputs.dataset_inputs
    }
    assert inputs.keys() == {"plain train", "plain test"}
    rows = {"train": made.release.train_rows, "test": made.release.test_rows}
    for split, context in (("train", "training"), ("test", "test")):
        dataset, tags = inputs[f"plain {split}"]
        assert tags == {"mlflow.data.context": context}
        assert dataset.digest == made.release.dataset_fingerprint[:32]
        assert dataset.source_type == "local"
        assert Path(json.loads(dataset.source)["uri"].removeprefix("file://")).exists()
        profile = json.loads(dataset.profile)
        assert profile["num_rows"] == sum(profile["rows_by_class"].values()) == rows[split]
        assert profile["image"] == "uint8, 1 x 8 x 8 (channels, height, width)"
        columns = {column["name"]: column["type"] for column in json.loads(dataset.schema)["mlflow_colspec"]}
        assert columns == {"image": "binary", "label": "integer"}


def test_a_run_names_its_user_its_commit_and_its_flow_run(made: Made) -> None:
    tags = made.run.data.tags
    assert tags["mlflow.user"] == getpass.getuser()
    assert tags["mlflow.source.name"] == made.recipe
    assert (tags["mlflow.source.git.commit"], tags["mlflow.source.git.dirty"]) == (made.commit, "false")
    with get_client(sync_client=True) as client:
        flow_run = client.read_flow_run(UUID(tags[FLOW_RUN_TAG]))
        of_run = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run.id]))
        artifacts = {
            str(artifact.key): artifact for artifact in client.read_artifacts(artifact_filter=of_run)
        }
    assert flow_run.name == "retrain-plain"
    assert flow_run.name in tags["mlflow.note.content"]
    assert artifacts.keys() >= {
        "plain-training",
        "plain-report",
        "plain-predictions",
        "plain-learning-curves",
    }
    assert all(key.startswith("plain-") for key in artifacts)
    assert f"/runs/{made.release.mlflow_run_id}/artifacts/report.html" in str(artifacts["plain-report"].data)
    assert flow_run.state is not None
    assert (
        flow_run.state.message
        == f"promoted: plain version 1 is the champion: {reason(made.release.verdict, 'champion')}"
    )


def test_model_and_version_are_described(made: Made) -> None:
    model = made.client.get_registered_model("plain").description
    assert model.startswith("For a test. Classifies grey images of 8 x 8 pixels into 10 classes: 0, 1, ")
    version = made.version.description
    assert version.startswith(
        "Trained on 1,460 images of plain (scikit-learn's digits), 1 epoch, weights of epoch 1."
    )
    assert "accurate on 337 test images (95\N{NO-BREAK SPACE}% confidence: " in version
    assert version.endswith(f"Promoted to champion: {reason(made.release.verdict, 'champion')}.")


def test_the_page_of_the_run_finds_the_version(made: Made) -> None:
    tags = made.client.get_logged_model(made.version.source.removeprefix("models:/")).tags
    assert json.loads(tags["mlflow.modelVersions"]) == [{"name": "plain", "version": 1}]


def test_training_continues_from_the_registered_weights(made: Made) -> None:
    """Runs the example of docs/recipes.md."""
    model = "models:/plain@champion"
    signature = mlflow.models.get_model_info(model).signature
    shape, classes = signature.inputs.inputs[0].shape[1:], signature.outputs.inputs[0].shape[1]
    module = load(made.recipe)[0].build_model(shape, classes)
    weights = load_file(mlflow.artifacts.download_artifacts(f"{model}/extra_files/weights.safetensors"))
    module.load_state_dict(weights)
    assert weights_digest(weights) == made.release.weights_digest
    module.train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    module(torch.rand(4, *shape)).square().mean().backward()
    torch.optim.SGD(module.parameters(), 0.1).step()
    assert any((before[name] != tensor).any() for name, tensor in module.state_dict().items())


@pytest.mark.parametrize("harm", ["changed", "gone", "another"])
def test_changed_weights_are_refused(made: Made, harm: str) -> None:
    from tasks.registry.aliases import load_version

    (weights,) = made.home.mlflow_artifacts.rglob("extra_files/weights.safetensors")
    kept, more = weights.read_bytes(), weights.with_name("more.py")
    if harm == "changed":
        weights.write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    elif harm == "gone":
        weights.unlink()
    else:
        more.write_text("")
    try:
        with pytest.raises(DataError, match=r"weights\.safetensors"):
            load_version(made.home, "plain", "1")
    finally:
        more.unlink(missing_ok=True)
        weights.write_bytes(kept)
    load_version(made.home, "plain", "1")
