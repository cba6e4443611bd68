"""The trainer `keras`: the rows of each step, resuming, the state of Keras' layers, and refusals."""

import json
import os
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from boosted_tables import bundled, outcome
from keras_runs import write_keras
from network_runs import crash_at, rows_of_steps, small_job
from small_runs import job_for, prepared, tiny_settings
from small_texts import write_csv
from trainer_contract import TrainerContract

from evergreen import Keras
from training.attempts.history import read_attempts
from training.attempts.job import TrainingJob
from training.checkpoints.weights import load_weights
from training.data.dataset import open_columns
from training.data.sources.text import Text
from training.errors import SettingError, TrainingError
from training.recipe import load
from training.records import DatasetVersion
from training.storage.paths import Home
from training.supervision.launch import launch
from training.trainers.keras import trainer
from training.trainers.replay_outcome import read_outcome

# An import would choose another backend of Keras.
pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(find_spec("keras") is None, reason="install the extras by: make setup EXTRAS=all"),
]

SUBCLASS = """
import keras
from keras import layers

class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.flat, self.drop, self.head = layers.Flatten(), layers.Dropout(0.5), layers.Dense(outputs)

    def call(self, rows):
        return self.head(self.drop(self.flat(rows)))

return Net()
"""


class TestKeras(TrainerContract):
    @pytest.fixture(autouse=True)
    def _recipe(self, small_version: DatasetVersion, tmp_path: Path) -> None:
        self.version, self.recipe = small_version, write_keras(tmp_path / "recipe")

    def job(self, home: Home) -> TrainingJob:
        return small_job(home, self.version, self.recipe)


def test_each_step_has_the_rows_of_the_trainer_torch(
    home: Home, tmp_path: Path, small_version: DatasetVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tiny_settings(training={"epochs": 3, "global_batch_size": 40}, checkpoint={"replay": False})
    expected = rows_of_steps(job_for(home, small_version, own), monkeypatch)
    recipe = write_keras(tmp_path / "recipe")
    assert rows_of_steps(small_job(home, small_version, recipe), monkeypatch) == expected


@pytest.mark.parametrize(("part", "passes"), [(0.2, 1), (0.6, 2), (0.9, 1)])
def test_a_crash_at_any_step_changes_no_bit(
    part: float,
    passes: int,
    home: Home,
    tmp_path: Path,
    small_version: DatasetVersion,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recipe = write_keras(tmp_path / "recipe")
    own = {"global_batch_size": 40, "accumulation_steps": passes}

    def job(where: Home) -> TrainingJob:
        return small_job(where, small_version, recipe, training=own, checkpoint={"every_steps": 3})

    calm = job(Home(tmp_path / "calm"))
    trained = launch(calm)
    hit = job(home)
    crash_at(part * trained.steps, hit, monkeypatch)
    assert outcome(hit, launch(hit)) == outcome(calm, trained)
    assert read_attempts(hit.paths)[1].first_step > 0


def test_another_thread_that_draws_random_numbers_changes_no_bit(
    home: Home, tmp_path: Path, small_version: DatasetVersion
) -> None:
    """As Prefect's event client does in its own thread when it connects to the server again."""

    def job(where: Home) -> TrainingJob:
        return small_job(where, small_version, write_keras(tmp_path / "recipe"))

    calm, busy = job(Home(tmp_path / "calm")), job(home)
    expected = outcome(calm, launch(calm))
    with drawing():
        assert outcome(busy, launch(busy)) == expected


@contextmanager
def drawing() -> Iterator[None]:
    """Draw from Python's `random` in another thread, all the time."""
    stopped, began = threading.Event(), threading.Event()

    def draw() -> None:
        while not stopped.is_set():
            random.random()
            began.set()

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        began.wait()
        yield
    finally:
        stopped.set()
        thread.join()


def test_the_replay_check_finds_the_same_bits(
    home: Home, tmp_path: Path, small_version: DatasetVersion
) -> None:
    job = small_job(home, small_version, write_keras(tmp_path / "recipe"))
    assert launch(job).reproducible
    assert read_outcome(job.paths).reproducible


def test_a_model_that_counts_its_calls_is_found(
    home: Home, tmp_path: Path, small_version: DatasetVersion
) -> None:
    recipe = write_keras(
        tmp_path / "recipe",
        ("def call(self, rows, training=None):", "calls = 0\n        def call(self, rows, training=None):\n"
         "            self.calls += bool(training)\n            rows = rows * (1 + self.calls / 100)"),
    )  # fmt: skip
    assert launch(small_job(home, small_version, recipe)).reproducible is False


def trained_values(trained_weights: str) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in load_weights(Path(trained_weights)).items()}


def test_moving_statistics_change_in_training_alone(
    home: Home, tmp_path: Path, small_version: DatasetVersion
) -> None:
    """After the training, the moving mean is no longer 0, and the weights file has no state of random generators."""
    job = small_job(home, small_version, write_keras(tmp_path / "recipe"))
    values = trained_values(launch(job).weights)
    statistics = ["004_moving_mean", "005_moving_variance"]
    assert sorted(values) == [
        *("000_kernel", "001_bias", "002_gamma", "003_beta"), *statistics, "006_kernel", "007_bias"
    ]  # fmt: skip
    assert (values["004_moving_mean"] != 0).any()
    assert (values["005_moving_variance"] != 1).any()


def test_dropout_acts_in_training_alone_and_depends_on_the_generators_of_torch() -> None:
    import torch

    from training.trainers.keras.module import build_keras_module

    def build_model(shape: tuple[int, ...], outputs: int) -> object:
        scope: dict[str, object] = {}
        body = "\n".join(f"    {line}" for line in SUBCLASS.splitlines())
        exec(f"def build(shape, outputs):\n{body}", scope)
        return scope["build"](shape, outputs)  # type: ignore[operator]

    module = build_keras_module(build_model, (1, 8, 8), 3)
    rows = torch.rand(50, 1, 8, 8)
    module.eval()
    assert torch.equal(module(rows), module(rows))
    module.train()
    torch.manual_seed(1)
    first, second = module(rows), module(rows)
    assert not torch.equal(first, second)
    torch.manual_seed(1)
    assert torch.equal(module(rows), first)
    assert [name for name, _ in module.named_parameters()] == ["000_kernel", "001_bias"]


def test_images_come_channels_last(home: Home, tmp_path: Path) -> None:
    import torch

    from training.trainers.keras.module import build_keras_module

    seen: list[tuple[int, ...]] = []

    def build_model(shape: tuple[int, ...], outputs: int) -> object:
        import keras

        seen.append(shape)
        means = keras.layers.Lambda(lambda rows: keras.ops.mean(rows, axis=(1, 2)))
        return keras.Sequential([keras.Input(shape), means])

    module = build_keras_module(build_model, (3, 8, 6), 3).eval()
    rows = torch.rand(5, 3, 8, 6)
    assert seen == [(8, 6, 3)]
    assert torch.allclose(module(rows), rows.mean(dim=(2, 3)))


def test_a_second_model_of_the_process_has_the_same_names() -> None:
    from training.trainers.keras.module import build_keras_module

    def build_model(shape: tuple[int, ...], outputs: int) -> object:
        import keras

        return keras.Sequential([keras.layers.Dense(4, activation="relu"), keras.layers.Dense(outputs)])

    first, second = (build_keras_module(build_model, (7,), 2) for _ in range(2))
    assert list(first.state_dict()) == list(second.state_dict())
    second.load_state_dict(first.state_dict())


def test_frozen_layers_keep_their_weights(home: Home, tmp_path: Path, small_version: DatasetVersion) -> None:
    recipe = write_keras(
        tmp_path / "recipe", ('padding="same")', 'padding="same", trainable=False, bias_initializer="ones")')
    )
    values = trained_values(launch(small_job(home, small_version, recipe)).weights)
    frozen = [value for value in values.values() if value.shape == (8,) and (value == 1).all()]
    assert len(frozen) == 1


def test_a_regression_on_a_table_and_bfloat16(home: Home, tmp_path: Path) -> None:
    recipe = write_keras(
        tmp_path / "recipe",
        ("Augmentation, Digits", "BundledTable, Regression"),
        ("Digits(), trainer", 'BundledTable("diabetes"), Regression(), trainer'),
        (", augmentation=Augmentation(shift=1)", ""),
        model="import keras\nreturn keras.Sequential([keras.layers.BatchNormalization(), keras.layers.Dense(outputs)])",
    )
    own = {"global_batch_size": 40, "epochs": 20, "learning_rate": 0.02, "precision": "bfloat16"}
    job = small_job(home, bundled(home, "regression"), recipe, training=own)
    trained = launch(job)
    assert trained.history[-1].validation_score < 0.9 * open_columns(job.dataset, "train").targets.std()


def test_a_text_with_a_mask(home: Home, tmp_path: Path) -> None:
    recipe = write_keras(
        tmp_path / "recipe",
        ("Augmentation, Digits, Keras, Recipe", "Keras, Recipe, Text"),
        ("Digits(), trainer", "Text(), trainer"),
        (", augmentation=Augmentation(shift=1)", ""),
        model="import keras\nreturn keras.Sequential([\n"
        "    keras.layers.Embedding(shape.vocabulary, 16, mask_zero=True), keras.layers.GlobalAveragePooling1D(),\n"
        "    keras.layers.Dense(outputs),\n])",
    )
    own = {"global_batch_size": 40, "epochs": 4, "learning_rate": 0.02}
    source = Text(write_csv(tmp_path / "rows.csv", 400))
    version = prepared(home, source, "films", {"max_tokens": 16, "vocabulary": 400})
    assert launch(small_job(home, version, recipe, training=own)).history[-1].validation_score > 0.9


def keras_model(layer: str, after: str = "") -> str:
    return (
        f"import keras\nmodel = keras.Sequential([keras.Input(shape), keras.layers.Flatten(), {layer}])\n{after}\n"
        "return model"
    )


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            keras_model("keras.layers.Dense(outputs)", "model.compile('adam', 'mse')"),
            "leave out model.compile",
        ),
        (keras_model("keras.layers.Dense(outputs, activation='softmax')"), "must be logits"),
        (keras_model("keras.layers.Dense(outputs, kernel_regularizer='l2')"), "use training.weight_decay"),
        (keras_model("keras.layers.Dense(outputs, kernel_constraint='max_norm')"), "constraint on .*kernel"),
        (keras_model("keras.layers.Dense(outputs + 1)"), r"\(2, 11\); 10 classes need \(2, 10\)"),
        (
            "import torch\n" + keras_model("keras.layers.TorchModuleWrapper(torch.nn.Linear(64, outputs))"),
            "contains a PyTorch module",
        ),
        (
            keras_model("keras.layers.SpectralNormalization(keras.layers.Dense(outputs))"),
            "assigns to its trained weight .*kernel in training",
        ),
        (
            keras_model("keras.layers.ActivityRegularization(l2=1.0), keras.layers.Dense(outputs)"),
            "adds losses of its own",
        ),
        (
            "import keras\nclass Own(keras.Sequential):\n    def train_step(self, data):\n        raise OSError\n"
            "return Own([keras.Input(shape), keras.layers.Flatten(), keras.layers.Dense(outputs)])",
            "a train_step of its own",
        ),
        ("import torch\nreturn torch.nn.Linear(3, 4)", "a Linear; trainer Keras needs a keras.Model"),
        (
            "import keras\nreturn keras.Sequential([keras.Input((3, 4)), keras.layers.Dense(outputs)])",
            r"refuses images of \(height, width, channels\) \(8, 8, 1\)",
        ),
    ],
)
def test_a_model_that_the_loop_can_t_train_is_refused(
    model: str, message: str, home: Home, tmp_path: Path, small_version: DatasetVersion
) -> None:
    recipe = write_keras(tmp_path / "recipe", model=model)
    with pytest.raises(TrainingError, match=message):
        launch(small_job(home, small_version, recipe))


def test_arguments_of_model_fit_are_refused() -> None:
    with pytest.raises(SettingError, match="batch_size is not an argument here; use global_batch_size"):
        Keras(print, batch_size=32)


def run_python(code: str, user: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run code in a new process, whose user has the home directory `user`."""
    own = {"HOME": str(user), "PYTHONPATH": os.pathsep.join(sys.path)} | more
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KERAS_")}
    return subprocess.run([sys.executable, "-c", code], env=kept | own, capture_output=True, text=True)


def test_the_user_s_configuration_of_keras_is_neither_used_nor_written(tmp_path: Path) -> None:
    code = (
        "from training.trainers.keras.library import torch_keras; keras = torch_keras(); "
        "from training.trainers.network.keras_import import set_defaults; "
        "set_defaults(keras); "
        "print(keras.config.backend(), keras.config.floatx(), keras.config.image_data_format())"
    )
    own = tmp_path / "own" / ".keras"
    own.mkdir(parents=True)
    theirs = {"backend": "jax", "floatx": "float64", "epsilon": 0.1, "image_data_format": "channels_first"}
    (own / "keras.json").write_text(json.dumps(theirs))
    new = tmp_path / "new"
    new.mkdir()
    for user in (own.parent, new):
        done = run_python(code, user)
        assert done.stdout.split() == ["torch", "float32", "channels_last"], done.stderr
    assert json.loads((own / "keras.json").read_text()) == theirs
    assert list(own.iterdir()) == [own / "keras.json"]
    assert list(new.iterdir()) == []


def test_keras_on_another_backend_is_refused(tmp_path: Path) -> None:
    code = (
        "import sys, types; fake = types.ModuleType('keras'); "
        "fake.config = types.SimpleNamespace(backend=lambda: 'jax'); sys.modules['keras'] = fake; "
        "from training.trainers.keras.library import torch_keras; torch_keras()"
    )
    done = run_python(code, tmp_path)
    assert "SettingError" in done.stderr
    assert "import keras inside build_model, or set KERAS_BACKEND=torch" in done.stderr


def test_the_command_that_installs_keras_is_named(
    small_version: DatasetVersion, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trainer, "find_spec", {}.get)
    settings = load(write_keras(tmp_path))[0].settings
    with pytest.raises(SettingError, match=r"install it by `make setup EXTRAS=all`"):
        trainer.check_dataset(settings, small_version)


def test_a_frozen_layer_may_follow_a_trained_one() -> None:
    """The gradient of the first layer needs the weights of the second as they were in the forward pass."""

    import torch

    from training.trainers.keras.module import build_keras_module

    def build_model(shape: tuple[int, ...], outputs: int) -> object:
        import keras
        from keras import layers

        frozen = layers.Dense(8, activation="relu", trainable=False)
        return keras.Sequential([layers.Input(shape), layers.Dense(8), frozen, layers.Dense(outputs)])

    module = build_keras_module(build_model, (7,), 2).train()  # type: ignore[arg-type]
    module(torch.ones(3, 7)).sum().backward()
    first = next(iter(module.parameters()))
    assert first.grad is not None
    assert first.grad.abs().max() > 0
