"""Recipe for the data of recipe `digits`, with a Keras model of the same layers, trained by TensorFlow."""

from typing import TYPE_CHECKING

from evergreen import (
    Augmentation,
    Digits,
    GateSettings,
    ImageShape,
    Recipe,
    ScalingSettings,
    Settings,
    TensorFlow,
)

if TYPE_CHECKING:
    import keras


def build_model(shape: ImageShape, classes: int) -> "keras.Model":
    """Three 3x3 convolutions with batch normalisation, global average pool, dense layer (about 95,000 weights)."""
    import keras
    from keras import layers

    def block(filters: int) -> list[keras.Layer]:
        convolution = layers.Conv2D(filters, 3, padding="same", use_bias=False)
        return [convolution, layers.BatchNormalization(), layers.ReLU()]

    return keras.Sequential(
        [
            keras.Input(shape),
            *block(32),
            *block(64),
            layers.MaxPooling2D(2),
            *block(128),
            layers.GlobalAveragePooling2D(),
            layers.Dense(classes),
        ]
    )


recipe = Recipe(
    name="digits-tensorflow",
    summary="scikit-learn's handwritten digits, a Keras model on TensorFlow",
    source=Digits(),
    trainer=TensorFlow(build_model, epochs=20, global_batch_size=64, learning_rate=5e-3),
    augmentation=Augmentation(shift=1, rotation=10, scale=0.1),
    settings=Settings(scaling=ScalingSettings(num_workers=2), gate=GateSettings(floor=0.95)),
)
