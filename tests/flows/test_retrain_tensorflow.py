"""A model of TensorFlow in the real flow, in one process: registered, predicts, loaded by plain MLflow, rolled back."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from framework_scenario import check_digits

from training.storage.paths import Home

pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(find_spec("tensorflow") is None, reason="run by: make test-tensorflow"),
    pytest.mark.usefixtures("prefect_harness"),
]

_RECIPE = """
from evergreen import Digits, Recipe, TensorFlow

def build_model(shape, outputs):
    import keras
    from keras import layers

    inputs = keras.Input(shape)
    rows = layers.ReLU()(layers.BatchNormalization()(layers.Conv2D(16, 3, padding="same")(inputs)))
    rows = layers.Dropout(0.1)(layers.Flatten()(layers.MaxPooling2D(2)(rows)))
    return keras.Model(inputs, layers.Dense(outputs)(rows))

recipe = Recipe("framework", "for a test", Digits(), trainer=TensorFlow(build_model, learning_rate=1e-2))
"""


def test_a_tensorflow_model_is_registered_predicts_and_is_rolled_back(home: Home, tmp_path: Path) -> None:
    check_digits(home, tmp_path, _RECIPE, "tensorflow-cpu", blocked=())
