"""The guides' script with the Trainer of Transformers on Ray Train (P17-transformers), written from their description.

`TrainingArguments` that evaluate and save after each epoch, Ray's report callback, which uploads the checkpoint of
Transformers, and `prepare_trainer`.
"""

import time
from pathlib import Path
from typing import Any

from benchmarks.baselines.guides_training import loaders, write_clock


def train_loop_per_worker(config: dict[str, Any]) -> None:
    """What each worker runs."""
    import ray.train
    import torch
    import transformers
    from ray.train.huggingface.transformers import RayTrainReportCallback, prepare_trainer
    from torch.utils.data import Dataset
    from transformers import TrainerCallback

    from benchmarks.recipes.resnet_transformers import build_model

    torch.set_num_threads(1)

    class Pictures(Dataset[Any]):
        """Rows as the arguments of the model."""

        def __init__(self, rows: Any):
            self.rows = rows

        def __len__(self) -> int:
            return len(self.rows)

        def __getitem__(self, row: int) -> dict[str, Any]:
            image, label = self.rows[row]
            return {"pixel_values": image, "labels": label}

    class Clock(TrainerCallback):
        """Times the end of each epoch, and counts the rows of all epochs but the first."""

        def __init__(self) -> None:
            self.ends: list[float] = []
            self.rows = 0

        def on_evaluate(self, *_: Any, **__: Any) -> None:
            self.ends.append(time.time())

        def on_epoch_end(self, *_: Any, **__: Any) -> None:
            self.rows += shared if self.ends else 0

    def accuracy(prediction: Any) -> dict[str, float]:
        return {"accuracy": float((prediction.predictions.argmax(1) == prediction.label_ids).mean())}

    train, validate = (Pictures(loader.dataset) for loader in loaders(config))
    shared = -(-len(train) // ray.train.get_context().get_world_size())
    arguments = transformers.TrainingArguments(
        output_dir=str(Path(config["clock"]).parent / "transformers"),
        num_train_epochs=config["epochs"],
        per_device_train_batch_size=config["batch_size_per_worker"],
        per_device_eval_batch_size=config["batch_size_per_worker"],
        learning_rate=config["learning_rate"],
        lr_scheduler_type="constant",
        weight_decay=1e-2,
        eval_strategy="epoch",
        save_strategy="epoch",
        logging_strategy="epoch",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    clock = Clock()
    trainer = transformers.Trainer(
        model=build_model((1, 28, 28), 10),
        args=arguments,
        train_dataset=train,
        eval_dataset=validate,
        compute_metrics=accuracy,
        callbacks=[clock, RayTrainReportCallback()],
    )
    trainer = prepare_trainer(trainer)
    trainer.train()
    last = trainer.evaluate()
    metrics = {"loss": last["eval_loss"], "accuracy": last["eval_accuracy"]}
    write_clock(config, clock.ends[: config["epochs"]], clock.rows, metrics)
