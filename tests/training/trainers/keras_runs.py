"""Small trainings of Keras models."""

from pathlib import Path

# Moving statistics, random numbers of Keras with and without a generator of the layer, and a layer of the recipe's own.
RECIPE = """
from evergreen import Augmentation, Digits, Keras, Recipe

def build_model(shape, outputs):
    import keras
    from keras import layers

    class Noise(layers.Layer):
        def call(self, rows, training=None):
            return rows + keras.random.normal(rows.shape, stddev=0.01) if training else rows

    return keras.Sequential([
        keras.Input(shape), layers.Conv2D(8, 3, padding="same"), layers.BatchNormalization(), layers.ReLU(), Noise(),
        layers.Dropout(0.1), layers.Flatten(), layers.Dropout(0.1), layers.Dense(outputs),
    ])

trainer = Keras(build_model, epochs=3, learning_rate=5e-3)
recipe = Recipe("keras-digits", "for a test", Digits(), trainer=trainer, augmentation=Augmentation(shift=1))
"""


def write_keras(folder: Path, *changes: tuple[str, str], model: str = "") -> str:
    """Write a recipe for handwritten digits, with parts of its text replaced; returns its path.

    `model`, if given, is the body of `build_model`.
    """
    text = RECIPE
    if model:
        begin, end = text.index("    import keras"), text.index("trainer =")
        text = text[:begin] + "\n".join(f"    {line}" for line in model.splitlines()) + "\n\n" + text[end:]
    for before, after in changes:
        assert before in text, before
        text = text.replace(before, after)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "keras_digits.py").write_text(text)
    return str(folder / "keras_digits.py")
