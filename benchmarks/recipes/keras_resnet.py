"""ResNet-18 for grey images in Keras, for any backend."""

from typing import TYPE_CHECKING, Any

from evergreen import ImageShape

if TYPE_CHECKING:
    import keras


def build_model(shape: ImageShape, classes: int) -> "keras.Model":
    """The model, with 11.2 million weights."""
    import keras
    from keras import layers

    def convolved(rows: Any, filters: int, size: int, stride: int) -> Any:
        options = {"strides": stride, "padding": "same", "use_bias": False}
        convolution = layers.Conv2D(filters, size, **options)(rows)
        # With the default of 0.99, more than half of the initial statistics is left after the 54 steps of a row.
        return layers.BatchNormalization(momentum=0.9)(convolution)

    def block(rows: Any, filters: int, stride: int) -> Any:
        inner = layers.ReLU()(convolved(rows, filters, 3, stride))
        same = stride == 1 and rows.shape[-1] == filters
        shortcut = rows if same else convolved(rows, filters, 1, stride)
        return layers.ReLU()(layers.Add()([convolved(inner, filters, 3, 1), shortcut]))

    images = keras.Input(shape)
    rows = layers.ReLU()(convolved(images, 64, 7, 2))
    rows = layers.MaxPooling2D(3, strides=2, padding="same")(rows)
    for number, filters in enumerate((64, 128, 256, 512)):
        rows = block(block(rows, filters, 1 if number == 0 else 2), filters, 1)
    return keras.Model(images, layers.Dense(classes)(layers.GlobalAveragePooling2D()(rows)))
