"""ResNet-18 for grey images as a Keras model on torch, with the guides' optimizer."""

from benchmarks.recipes.keras_resnet import build_model
from evergreen import IdxFiles, Keras, Recipe

recipe = Recipe(
    "bench-resnet-keras",
    source=IdxFiles("MNIST"),
    trainer=Keras(build_model, learning_rate=1e-3, weight_decay=1e-2, schedule="constant", warmup_share=0.0),
)
