"""The guides' script with TensorFlow on Ray Train (P17-tensorflow), written from their description.

A training loop under `MultiWorkerMirroredStrategy`, in which each worker reads its own share of the rows by a
`tf.data.Dataset`; after each epoch, the loop validates, saves the model and reports. The guides call `model.fit` of
Keras 2; that of Keras 3 ends with an error under this strategy: it takes the values of all replicas for one tensor. A
dataset of all rows, which the strategy distributes, would take 1.6 to 6 times as long on two cores.
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
        optimizer = keras.optimizers.AdamW(config["learning_rate"], weight_decay=1e-2)
        optimizer.build(model.trainable_variables)
    learn, validate = _rows(config, "learn"), _rows(config, "validate")
    workers = strategy.num_replicas_in_sync
    train = learn.shuffle(len(learn)).batch(_GLOBAL_BATCH // workers).prefetch(tf.data.AUTOTUNE)
    valid = validate.batch(_GLOBAL_BATCH // workers)
    step, count_right = _compiled(strategy, model, optimizer)
    ends, timed, accuracy = list[float](), 0, 0.0
    for epoch in range(config["epochs"]):
        losses = [step(images, labels) for images, labels in train]
        right = sum(int(count_right(images, labels)) for images, labels in valid)
        accuracy = right / len(config["validate"])
        _report(model, {"loss": float(tf.reduce_mean(losses)), "accuracy": accuracy, "epoch": epoch})
        ends.append(time.time())
        timed += len(losses) if epoch else 0
    _write(config, ends, timed * _GLOBAL_BATCH, accuracy)


def _compiled(strategy: Any, model: Any, optimizer: Any) -> tuple[Any, Any]:
    """A training step, which returns the loss, and the number of rows that the model predicts, over all workers."""
    import keras
    import tensorflow as tf

    criterion = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=None)

    def update(images: Any, labels: Any) -> Any:
        with tf.GradientTape() as tape:
            losses = criterion(labels, model(images, training=True))
            loss = tf.nn.compute_average_loss(losses, global_batch_size=_GLOBAL_BATCH)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    def right(images: Any, labels: Any) -> Any:
        predicted = tf.argmax(model(images, training=False), axis=1)
        return tf.reduce_sum(tf.cast(predicted == tf.cast(labels, predicted.dtype), tf.int32))

    def step(images: Any, labels: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(update, args=(images, labels)), axis=None)

    def count_right(images: Any, labels: Any) -> Any:
        return strategy.reduce("SUM", strategy.run(right, args=(images, labels)), axis=None)

    return tf.function(step), tf.function(count_right)


def _rows(config: dict[str, Any], name: str) -> Any:
    """This worker's images and labels as a `tf.data.Dataset`, scaled as by the other scripts."""
    import ray.train
    import tensorflow as tf

    context, images = ray.train.get_context(), read(Path(config["raw"]), "train")
    world = context.get_world_size()
    rows = config[name][
        context.get_world_rank() : len(config[name]) // world * world : world
    ]  # as many for each
    pixels = np.array(images.pixels)[rows].reshape(len(rows), 28, 28, 1)
    dataset = tf.data.Dataset.from_tensor_slices((pixels, images.labels[rows]))
    return dataset.map(lambda image, label: (tf.cast(image, tf.float32) / 127.5 - 1.0, label))


def _report(model: Any, metrics: dict[str, float]) -> None:
    """Save the model and report to Ray Train. All workers save, as the strategy demands; the first one uploads."""
    import ray.train

    first = ray.train.get_context().get_world_rank() == 0
    with tempfile.TemporaryDirectory() as folder:
        model.save(f"{folder}/model.keras")
        checkpoint = ray.train.Checkpoint.from_directory(folder) if first else None
        ray.train.report(metrics, checkpoint=checkpoint)


def _write(config: dict[str, Any], ends: list[float], rows: int, accuracy: float) -> None:
    import ray.train

    if ray.train.get_context().get_world_rank() == 0:
        Path(config["clock"]).write_text(json.dumps({"ends": ends, "rows": rows, "accuracy": accuracy}))
