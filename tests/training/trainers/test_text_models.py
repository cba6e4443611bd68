"""Networks on text: each trainer of PyTorch modules learns from token ids, and resumes with the same bits."""

from pathlib import Path

import pytest
from network_runs import crash_at, small_job
from small_runs import prepared
from small_texts import MODEL, write_csv

from training.data.sources.text import Text
from training.errors import SettingError, TrainingError
from training.records import DatasetVersion
from training.settings.schema import Settings
from training.storage.paths import Home
from training.supervision.launch import launch
from training.text_shape import TextShape
from training.trainers.lightgbm.trainer import check_dataset as check_lightgbm
from training.trainers.network.inputs import model_shape
from training.trainers.xgboost.trainer import check_dataset as check_xgboost

for library in ("tokenizers", "lightning", "accelerate", "xgboost", "lightgbm"):
    pytest.importorskip(library, reason="install the extras by: make setup EXTRAS=all")
pytestmark = pytest.mark.frameworks
HEAD = "from evergreen import Accelerate, Lightning, Recipe, Text, Torch\n"
TRAINERS = {
    "torch": "Torch(build_model)",
    "lightning": "Lightning(build_module, epochs=4)",
    "accelerate": "Accelerate(train, epochs=4)",
}
MORE = """
def build_module(shape, outputs):
    import lightning
    import torch

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = build_model(shape, outputs)

        def forward(self, ids):
            return self.network(ids)

        def training_step(self, batch):
            ids, labels = batch
            return torch.nn.functional.cross_entropy(self(ids), labels)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=0.02)

    return Module()


def train(loop):
    import torch
    from accelerate import Accelerator

    accelerator = Accelerator()
    model = loop.build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    model, optimizer = accelerator.prepare(model, optimizer)
    loop.register(model=model, optimizer=optimizer)
    for _ in loop.epochs():
        for ids, labels in loop.batches():
            outputs = model(ids)
            loss = torch.nn.functional.cross_entropy(outputs, labels)
            accelerator.backward(loss * loop.loss_weight)
            optimizer.step()
            optimizer.zero_grad()
            loop.finish_step(outputs)
"""


@pytest.fixture(scope="module")
def version(tmp_path_factory: pytest.TempPathFactory) -> DatasetVersion:
    folder = tmp_path_factory.mktemp("texts")
    source = Text(write_csv(folder / "rows.csv", 400))
    return prepared(Home(folder / "home"), source, "films", {"max_tokens": 16, "vocabulary": 400})


def write_recipe(folder: Path, trainer: str, model: str = MODEL) -> str:
    own = "" if "build_module" in TRAINERS[trainer] or trainer == "torch" else "build_model=build_model, "
    text = f"{HEAD}{model}{MORE}\nrecipe = Recipe('films', source=Text(), {own}trainer={TRAINERS[trainer]})\n"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "films.py").write_text(text)
    return str(folder / "films.py")


@pytest.mark.parametrize("trainer", TRAINERS)
def test_each_trainer_learns_and_resumes_with_the_same_bits(
    version: DatasetVersion, trainer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = write_recipe(tmp_path, trainer)
    rates = {"learning_rate": 0.02, "epochs": 4} if trainer == "torch" else {}
    calm, hit = (
        small_job(Home(tmp_path / name), version, recipe, training={"global_batch_size": 40} | rates)
        for name in ("calm", "hit")
    )
    trained = launch(calm)
    assert trained.history[-1].validation_score > 0.9
    crash_at(13, hit, monkeypatch)
    assert launch(hit).weights_digest == trained.weights_digest


def test_the_shape_sizes_an_embedding(version: DatasetVersion) -> None:
    shape = model_shape(version)
    assert isinstance(shape, TextShape)
    assert version.text is not None
    assert (shape, shape.vocabulary, shape.padding) == ((16,), version.text.vocabulary, 0)


def test_an_embedding_without_room_for_all_ids_is_refused(version: DatasetVersion, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, "torch", MODEL.replace("shape.vocabulary", "shape.vocabulary - 1"))
    with pytest.raises(TrainingError, match=r"refuses int64 rows of 16 token ids.*shape\.vocabulary"):
        launch(small_job(Home(tmp_path / "home"), version, recipe))


def test_trees_refuse_text(version: DatasetVersion) -> None:
    for check in (check_xgboost, check_lightgbm):
        with pytest.raises(SettingError, match="needs a table"):
            check(Settings(), version)
