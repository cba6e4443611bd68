"""P15: score a test split, and a Parquet file with a registered model. Side B is PyTorch over tensors in memory."""

import hashlib
import time
from pathlib import Path
from typing import Any

from benchmarks.baselines.trainings import job_of, version_of
from benchmarks.harness.row import Claim, Outcome, Row, Workspace

_MODEL = "bench"


def prepare(workspace: Workspace) -> None:
    """Train one step, register the model, and write the test rows as Parquet."""
    import numpy as np

    from tasks.model_formats.torch_export import log_serving_model
    from tasks.trackers.mlflow_store import connect
    from training.data.dataset import open_columns
    from training.recipe import load
    from training.storage.paths import Home
    from training.supervision.launch import launch
    from training.trainers.network.serving import serving_module

    job = _job(workspace)
    trained = launch(job)
    client = connect(None, Home(workspace.shared / "home"))
    artifacts = (workspace.shared / "artifacts").as_uri()
    run_id = client.create_run(client.create_experiment(_MODEL, artifact_location=artifacts)).info.run_id
    module = serving_module(load(job.recipe.path)[0], job.dataset, trained)
    example = np.array(open_columns(job.dataset, "test").inputs[:4])
    classes = {"classes": list(job.dataset.classes)}
    uri = log_serving_model(run_id, module, job.dataset, example, classes)
    client.create_registered_model(_MODEL)
    client.create_model_version(_MODEL, uri, run_id=run_id)
    _write_parquet(np.array(open_columns(job.dataset, "test").inputs), workspace.shared / "test.parquet")


def evergreen(workspace: Workspace) -> Outcome:
    """A: score as the evaluate step scores its candidate, and as `evergreen predict` scores without Ray."""
    import torch

    from tasks.inference.scoring import in_process, open_served
    from tasks.inference.unlabelled_images import find_chunks
    from tasks.trackers.mlflow_store import connect
    from training.data.dataset import open_columns
    from training.recipe import load
    from training.storage.paths import Home
    from training.supervision.launch import finished
    from training.trainers.base import inspection_of

    torch.set_num_threads(1)
    job, home = _job(workspace), Home(workspace.shared / "home")
    trained = finished(job.paths, job.run_key)
    assert trained is not None
    test = open_columns(job.dataset, "test")
    recipe = load(job.recipe.path)[0]
    predict = inspection_of(recipe.settings.trainer).predictor(recipe, job.dataset, trained)
    predict(test.inputs[:512])
    evaluated = []
    for _ in range(_turns(workspace)):
        began = time.perf_counter()
        probabilities = predict(test.inputs)
        evaluated.append(len(probabilities) / (time.perf_counter() - began))

    connect(None, home)
    served = open_served(_MODEL, "1", None, home)
    served.predict(test.inputs[:512])
    predicted = []
    for _ in range(_turns(workspace)):
        began = time.perf_counter()
        chunks = find_chunks(workspace.shared / "test.parquet")
        rows = sum(len(batch["predictions"]) for batch in in_process(chunks, served))
        predicted.append(rows / (time.perf_counter() - began))
        if rows != len(probabilities):
            raise RuntimeError(f"{rows} rows were predicted, {len(probabilities)} evaluated")
    return Outcome({"rows_per_s": evaluated, "predict_rows_per_s": predicted}, _did(probabilities))


def plain(workspace: Workspace) -> Outcome:
    """B: the images are one tensor in memory, the model is torchvision's."""
    import numpy as np
    import torch
    from safetensors.torch import load_file

    from training.data.dataset import open_columns
    from training.recipes.mnist import resnet18

    torch.set_num_threads(1)
    job = _job(workspace)
    images = torch.from_numpy(np.array(open_columns(job.dataset, "test").inputs))
    model = resnet18(job.dataset.shape, len(job.dataset.classes))
    model.load_state_dict(load_file(job.paths.model / "weights.safetensors"))
    model.eval()
    mean, std = job.dataset.mean[0], job.dataset.std[0]

    def score(part: torch.Tensor) -> torch.Tensor:
        return torch.softmax(model((part.float() / 255 - mean) / std), dim=1)

    with torch.inference_mode():
        score(images[:512])
        speeds = []
        for _ in range(_turns(workspace)):
            began = time.perf_counter()
            probabilities = torch.cat(
                [score(images[start : start + 512]) for start in range(0, len(images), 512)]
            ).numpy()
            speeds.append(len(probabilities) / (time.perf_counter() - began))
    return Outcome({"rows_per_s": speeds}, _did(probabilities))


def _turns(workspace: Workspace) -> int:
    """Number of passes over the rows; each pass is compared with one of the other side."""
    return workspace.pick(2, 2, 1)


def _write_parquet(images: Any, file: Path) -> None:
    """Write grey images (rows, 1, height, width) as Arrow's tensor type, which `evergreen predict` accepts."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"image": pa.FixedShapeTensorArray.from_numpy_ndarray(images[:, 0])}), file)


def _job(workspace: Workspace) -> Any:
    version = version_of(workspace.data, 2560, workspace.pick(4096, 2048, 512))
    settings = {"training": {"epochs": 1, "max_steps": 2}, "scaling": {"num_workers": 0}}
    return job_of(workspace.shared / "home", version, "resnet", settings)


def _did(probabilities: Any) -> dict[str, Any]:
    return {
        "rows": len(probabilities),
        "classes": hashlib.sha256(probabilities.argmax(1).tobytes()).hexdigest(),
        "top": float(probabilities.max(1).sum()),
    }


ROW = Row(
    id="P15",
    sides={"a": evergreen, "b": plain},
    claims=(
        Claim(
            "P15-evaluate",
            "scoring the test rows / PyTorch over tensors in memory",
            of="rows_per_s",
            unit="rows/s",
            goal=0.9,
            at_least=True,
        ),
        Claim(
            "P15-predict",
            "scoring a Parquet file with a registered model / the same",
            of="predict_rows_per_s",
            of_b="rows_per_s",
            unit="rows/s",
            goal=0.9,
            at_least=True,
        ),
    ),
    prepare=prepare,
    same=("rows", "classes"),
    close={"top": 1e-4},
    warm_up=False,
    quick=True,
)
