"""Small trainings by TensorFlow."""

from pathlib import Path

# Moving statistics, and random numbers of Keras.
RECIPE = """
from evergreen import Augmentation, Digits, Recipe, TensorFlow

def build_model(shape, outputs):
    import keras
    from keras import layers

    return keras.Sequential([
        keras.Input(shape), layers.Conv2D(8, 3, padding="same"), layers.BatchNormalization(), layers.ReLU(),
        layers.Dropout(0.1), layers.Flatten(), layers.Dropout(0.1), layers.Dense(outputs),
    ])

trainer = TensorFlow(build_model, epochs=3, learning_rate=5e-3)
recipe = Recipe("tensorflow-digits", "for a test", Digits(), trainer=trainer, augmentation=Augmentation(shift=1))
"""


def write_tensorflow(folder: Path, *changes: tuple[str, str]) -> str:
    """Write a recipe for handwritten digits, with parts of its text replaced; returns its path."""
    text = RECIPE
    for before, after in changes:
        assert before in text, before
        text = text.replace(before, after)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tensorflow_digits.py").write_text(text)
    return str(folder / "tensorflow_digits.py")
