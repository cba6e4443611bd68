"""Language models under the trainers `transformers` and `torch`: they learn, and resume with the same bits."""

import math
from pathlib import Path

import numpy as np
import pytest
from network_runs import small_job
from small_language_models import BIGRAMS, GPT2, write_lines
from small_runs import prepared
from trainer_contract import TrainerContract

from training.attempts.job import TrainingJob
from training.data.dataset import open_columns
from training.data.sources.text import Text
from training.records import DatasetVersion
from training.storage.paths import Home
from training.supervision.launch import launch

for library in ("tokenizers", "transformers"):
    pytest.importorskip(library, reason="install the extras by: make setup EXTRAS=all")
pytestmark = pytest.mark.frameworks


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> DatasetVersion:
    """A dataset version of texts alone."""
    folder = tmp_path_factory.mktemp("texts")
    source = Text(write_lines(folder / "films.txt", 300), target=None)
    data = {"max_tokens": 16, "vocabulary": 300}
    return prepared(Home(folder / "home"), source, "films", data, "language_model")


def unigram_perplexity(version: DatasetVersion) -> float:
    """Perplexity of the test tokens by the frequencies of the tokens of the train split."""
    ids = [
        columns.read(np.arange(len(columns)))[:, 1:]
        for columns in (open_columns(version, "train"), open_columns(version, "test"))
    ]
    train, test = (split_ids[split_ids != 0] for split_ids in ids)
    counts = np.bincount(train, minlength=300) + 1.0
    return math.exp(-float(np.log(counts[test] / counts.sum()).mean()))


class TestLanguageModelOfTransformers(TrainerContract):
    @pytest.fixture(autouse=True)
    def _recipe(self, texts: DatasetVersion, tmp_path: Path) -> None:
        self.version, self.recipe = texts, tmp_path / "films.py"
        self.recipe.write_text(GPT2)

    def job(self, home: Home) -> TrainingJob:
        return small_job(home, self.version, str(self.recipe), training={"global_batch_size": 30})


def test_the_target_of_a_row_is_the_number_of_its_predicted_tokens(texts: DatasetVersion) -> None:
    columns = open_columns(texts, "train")
    ids = columns.read(np.arange(len(columns)))
    assert np.array_equal(columns.targets, (ids != 0).sum(1) - 1)
    assert texts.table is not None
    assert texts.table.target_mean == pytest.approx(columns.targets.mean())


def test_a_plain_module_learns_which_token_follows_another(
    home: Home, tmp_path: Path, texts: DatasetVersion
) -> None:
    recipe = tmp_path / "films.py"
    recipe.write_text(BIGRAMS)
    training = {"global_batch_size": 40, "epochs": 12, "learning_rate": 0.05}
    trained = launch(small_job(home, texts, str(recipe), training=training))
    assert trained.history[-1].validation_score < 0.9 * unigram_perplexity(texts)
