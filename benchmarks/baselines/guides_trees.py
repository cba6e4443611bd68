"""The guides' scripts with XGBoost and LightGBM on Ray Train, for P17, written from their description.

Each worker turns its shard of a Ray Dataset into the library's own matrix; the library exchanges histograms between the
workers, and each worker reports once, with the model as a checkpoint. The guides report each round, which waits up to a
second for Ray Train's controller.
"""

import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TARGET = "y"


def train_as_guides_do(
    library: str, train: Path, validate: Path, folder: Path, rounds: int
) -> dict[str, Any]:
    """Train on two workers; returns the training rows of all workers, the end of each round, and the loss.

    `library` is `xgboost` or `lightgbm`. Ray must be connected already.
    """
    import ray.data
    from ray.train import RunConfig, ScalingConfig
    from ray.train.lightgbm import LightGBMTrainer
    from ray.train.xgboost import XGBoostTrainer

    trainer, loop = {
        "xgboost": (XGBoostTrainer, xgboost_loop),
        "lightgbm": (LightGBMTrainer, lightgbm_loop),
    }[library]
    trainer(
        loop,
        train_loop_config={"rounds": rounds, "folder": str(folder)},
        scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
        run_config=RunConfig(name="guides", storage_path=str(folder / "ray")),
        datasets={
            "train": ray.data.read_parquet(str(train)),
            "validation": ray.data.read_parquet(str(validate)),
        },
    ).fit()
    records = [json.loads(file.read_text()) for file in sorted(folder.glob("rank-*.json"))]
    return {**records[0], "rows": sum(record["rows"] for record in records)}


def xgboost_loop(config: dict[str, Any]) -> None:
    """The training function of the script with XGBoost."""
    import xgboost

    (x, y), (valid_x, valid_y) = _shard("train"), _shard("validation")
    rows, ends, results = xgboost.DMatrix(x, y), list[float](), dict[str, Any]()

    class Clock(xgboost.callback.TrainingCallback):
        def after_iteration(self, model: Any, epoch: int, evals_log: Any) -> bool:
            del model, epoch, evals_log
            ends.append(time.time())
            return False

    trees = xgboost.train(
        {"objective": "reg:squarederror", "eta": 0.3, "max_depth": 6, "tree_method": "hist", "nthread": 1},
        rows,
        num_boost_round=config["rounds"],
        evals=[(rows, "train"), (xgboost.DMatrix(valid_x, valid_y), "validation")],
        evals_result=results,
        verbose_eval=False,
        callbacks=[Clock()],
    )
    _finish(config, trees.save_model, len(y), ends, results["validation"]["rmse"][-1])


def lightgbm_loop(config: dict[str, Any]) -> None:
    """The training function of the script with LightGBM; a worker's loss covers the worker's own rows."""
    import lightgbm
    from ray.train.lightgbm import get_network_params

    (x, y), (valid_x, valid_y) = _shard("train"), _shard("validation")
    rows, ends, results = lightgbm.Dataset(x, y), list[float](), dict[str, Any]()
    parameters = {
        "objective": "regression",
        "metric": "rmse",
        "learning_rate": 0.1,
        "num_leaves": 31,
        "num_threads": 1,
        "verbosity": -1,
        "tree_learner": "data_parallel",
        "pre_partition": True,
        **get_network_params(),
    }
    trees = lightgbm.train(
        parameters,
        rows,
        num_boost_round=config["rounds"],
        valid_sets=[rows, rows.create_valid(valid_x, valid_y)],
        valid_names=["train", "validation"],
        callbacks=[lightgbm.record_evaluation(results), lambda _: ends.append(time.time())],
    )
    _finish(config, trees.save_model, len(y), ends, results["validation"]["rmse"][-1])


def _shard(name: str) -> tuple[Any, Any]:
    """This worker's rows of a dataset: columns and target."""
    import ray.train

    frame = ray.train.get_dataset_shard(name).materialize().to_pandas().astype("float32")
    return frame.drop(columns=[TARGET]), frame[TARGET]


def _finish(
    config: dict[str, Any], save: Callable[[str], object], rows: int, ends: list[float], loss: float
) -> None:
    """Report the model, and save this worker's number of rows and the ends of the rounds."""
    import ray.train

    rank = ray.train.get_context().get_world_rank()
    with tempfile.TemporaryDirectory() as folder:
        save(f"{folder}/model.txt")
        checkpoint = ray.train.Checkpoint.from_directory(folder) if rank == 0 else None
        ray.train.report({"rmse": loss}, checkpoint=checkpoint)
    file = Path(config["folder"]) / f"rank-{rank}.json"
    file.write_text(json.dumps({"rows": rows, "ends": ends, "rmse": loss}))
