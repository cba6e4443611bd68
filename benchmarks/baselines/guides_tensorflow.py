"""The guides' script with TensorFlow on Ray Train (P17-tensorflow), written from their description.

`model.fit` under `MultiWorkerMirroredStrategy`, over a `tf.data.Dataset` of all rows, of which TensorFlow gives each
worker its share; after each epoch, Keras validates, and a callback saves the model and reports.
"""

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.baselines.images import read

_GLOBAL_BATCH = 128


def new_trainer(**arguments: Any) -> Any:
    """Ray Train's trainer."""
    from ray.train.tensorflow import TensorflowTrainer

    return TensorflowTrainer(**arguments)


def train_loop_per_worker(config: dict[str, Any]) -> None:
    """What each worker runs."""
    import keras
    import tensorflow as tf

    from benchmarks.recipes.keras_resnet import build_model

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)  # as in Evergreen
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = build_model((28, 28, 1), 10)
        model.compile(
            optimizer=keras.optimizers.AdamW(config["learning_rate"], weight_decay=1e-2),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=["accuracy"],
        )
    learn, validate = _rows(config, "learn"), _rows(config, "validate")
    ends, steps = list[float](), list[int]()
    found = model.fit(
        learn.shuffle(len(config["learn"])).batch(_GLOBAL_BATCH),
        validation_data=validate.batch(_GLOBAL_BATCH),
        epochs=config["epochs"],
        callbacks=[_report_after_epochs(ends, steps)],
        verbose=0,
    )
    timed = sum(epoch > 0 for epoch in steps)
    _write(config, ends, timed * _GLOBAL_BATCH, found.history["val_accuracy"][-1])


def _rows(config: dict[str, Any], name: str) -> Any:
    """Images and labels as a `tf.data.Dataset`, scaled as by the other scripts, and divided among workers by rows."""
    import tensorflow as tf

    found = read(Path(config["raw"]), "train")
    rows = config[name]
    pixels = np.array(found.pixels)[rows].reshape(len(rows), 28, 28, 1)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    dataset = tf.data.Dataset.from_tensor_slices((pixels, found.labels[rows])).with_options(options)
    return dataset.map(lambda image, label: (tf.cast(image, tf.float32) / 127.5 - 1.0, label))


def _report_after_epochs(ends: list[float], steps: list[int]) -> Any:
    """A callback that saves the model and reports to Ray Train, as `ReportCheckpointCallback`.

    It notes the time at the end of each epoch, and the epoch of each step.
    """
    import keras
    import ray.train

    class Report(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
            del batch, logs
            steps.append(len(ends))

        def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
            first = ray.train.get_context().get_world_rank() == 0
            with tempfile.TemporaryDirectory() as folder:
                self.model.save(f"{folder}/model.keras")
                checkpoint = ray.train.Checkpoint.from_directory(folder) if first else None
                ray.train.report({**(logs or {}), "epoch": epoch}, checkpoint=checkpoint)
            ends.append(time.time())

    return Report()


def _write(config: dict[str, Any], ends: list[float], rows: int, accuracy: float) -> None:
    import ray.train

    if ray.train.get_context().get_world_rank() == 0:
        Path(config["clock"]).write_text(json.dumps({"ends": ends, "rows": rows, "accuracy": accuracy}))
