"""ResNet-18 for grey images as a Keras model on TensorFlow, with the guides' optimizer."""

from benchmarks.recipes.keras_resnet import build_model
from evergreen import IdxFiles, Recipe, TensorFlow

recipe = Recipe(
    "bench-resnet-tensorflow",
    source=IdxFiles("MNIST"),
    trainer=TensorFlow(
        build_model, learning_rate=1e-3, weight_decay=1e-2, schedule="constant", warmup_share=0.0
    ),
)
