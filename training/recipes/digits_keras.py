"""Recipe for the data of recipe `digits`, with a network of the same layers as a Keras model."""

from typing import TYPE_CHECKING

from evergreen import (
    Augmentation,
    Digits,
    GateSettings,
    ImageShape,
    Keras,
    Recipe,
    ScalingSettings,
    Settings,
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
    name="digits-keras",
    summary="scikit-learn's handwritten digits, a Keras model",
    source=Digits(),
    trainer=Keras(build_model, epochs=20, global_batch_size=64, learning_rate=5e-3),
    augmentation=Augmentation(shift=1, rotation=10, scale=0.1),
    settings=Settings(scaling=ScalingSettings(num_workers=2), gate=GateSettings(floor=0.95)),
)
