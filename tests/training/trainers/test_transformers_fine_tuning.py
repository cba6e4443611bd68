"""The trainer `transformers` starts from given weights, also of another head, and leaves frozen parts unchanged."""

from pathlib import Path
from typing import Any

import pytest
import torch
from boosted_tables import outcome
from network_runs import crash_at, small_job, starting_from
from safetensors.torch import load_file
from trainer_contract import TrainerContract
from transformers_runs import write_transformers

from training.attempts.history import read_attempts
from training.attempts.job import TrainingJob
from training.checkpoints.weights import load_weights
from training.errors import SettingError, TrainingError
from training.initial_weights import weights_file
from training.recipe import load
from training.records import DatasetVersion
from training.storage.paths import Home
from training.supervision.launch import launch
from training.trainers.network.fine_tuning import Started, start_from
from training.trainers.network.modules import build_module
from training.trainers.transformers.logits import RowsToLogits
from training.trainers.transformers.settings import TransformersSettings

pytest.importorskip("transformers", reason="install the extras by: make setup EXTRAS=all")
pytestmark = pytest.mark.frameworks
FROZEN = {"init_from": "champion", "freeze": ["vit.embeddings", "vit.encoder"]}
Weights = dict[str, torch.Tensor]


def bert(kind: str = "BertForSequenceClassification", **changes: Any) -> Any:
    import transformers

    config = transformers.BertConfig(
        **{
            "vocab_size": 50,
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "intermediate_size": 32,
            "max_position_embeddings": 16,
            "num_labels": 3,
            **changes,
        }
    )
    return getattr(transformers, kind)(config)


def started(model: Any, weights: Weights, head: str = "new", freeze: tuple[str, ...] = ()) -> Started:
    options = TransformersSettings(init_from="champion", init_head=head, freeze=freeze)
    return start_from(RowsToLogits(model), weights, options, 3)


def copies(model: Any) -> Weights:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def equal_names(weights: Weights, other: Weights) -> set[str]:
    return {name for name in weights.keys() & other.keys() if torch.equal(weights[name], other[name])}


# --- names of tensors


def test_the_same_model_takes_all_tensors() -> None:
    here, there = bert(), bert()
    assert started(here, copies(there), "keep").new == ()
    assert equal_names(here.state_dict(), there.state_dict()) == set(there.state_dict())


@pytest.mark.parametrize("folder", [False, True])
def test_a_base_model_s_weights_start_a_new_head(folder: bool, tmp_path: Path) -> None:
    here, there = bert(), bert("BertModel")
    weights, before = copies(there), copies(here)
    if folder:
        there.save_pretrained(tmp_path)
        weights = load_file(weights_file(tmp_path))
    with pytest.raises(
        SettingError, match=r"another head: they lack classifier\.bias, .*training\.init_head=new starts"
    ):
        started(here, weights, "keep")
    assert started(here, weights).new == ("classifier.bias", "classifier.weight")
    base = {f"bert.{name}": tensor for name, tensor in there.state_dict().items()}
    assert equal_names(here.state_dict(), base) == set(base)
    assert equal_names(here.state_dict(), before) >= {"classifier.weight", "classifier.bias"}


def test_the_head_and_the_pooler_of_another_task_are_left_out(tmp_path: Path) -> None:
    """The file has no tensor twice, and names of an earlier version of Transformers."""
    here, there = bert(), bert("BertForMaskedLM")
    there.save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    assert weights.keys() < there.state_dict().keys()
    renamed = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in weights.items()
    }
    with pytest.raises(
        SettingError, match=r"they lack bert\.pooler.*the model has no cls\.predictions.*init_head=new"
    ):
        started(here, renamed, "keep")
    assert started(here, renamed).new == (
        "bert.pooler.dense.bias",
        "bert.pooler.dense.weight",
        "classifier.bias",
        "classifier.weight",
    )
    base = {name for name in weights if name.startswith("bert.")}
    assert equal_names(here.state_dict(), copies(there)) == base
    again = bert("BertForMaskedLM")
    assert started(again, weights, "keep").new == ()
    assert equal_names(again.state_dict(), there.state_dict()) == set(there.state_dict())


def test_another_number_of_classes_starts_a_new_head() -> None:
    here, there = bert(), bert(num_labels=5)
    with pytest.raises(
        SettingError, match=r"classifier\.weight \(5, 16\) there, \(3, 16\) here.*init_head=new"
    ):
        started(here, copies(there), "keep")
    assert started(here, copies(there)).new == ("classifier.bias", "classifier.weight")


@pytest.mark.parametrize("head", ["keep", "new"])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_hidden_layers": 3}, r"the model has no bert\.encoder\.layer\.2"),
        ({"num_hidden_layers": 1}, r"they lack bert\.encoder\.layer\.1"),
        ({"hidden_size": 32}, r"other shapes: bert\.embeddings\.word_embeddings\.weight \(50, 32\) there"),
        (
            {"kind": "GPT2Model", "vocab_size": 50},
            "the weights are not of this recipe's model: they lack bert",
        ),
    ],
    ids=["deeper", "shallower", "wider", "other"],
)
def test_a_model_of_another_shape_is_refused_in_any_case(
    head: str, changes: dict[str, Any], message: str
) -> None:
    if changes.get("kind") == "GPT2Model":
        import transformers

        there = transformers.GPT2Model(
            transformers.GPT2Config(vocab_size=50, n_embd=16, n_layer=1, n_head=2, n_positions=16)
        )
    else:
        there = bert(**changes)
    with pytest.raises(SettingError, match=message):
        started(bert(), copies(there), head)


def test_new_weights_are_not_frozen() -> None:
    with pytest.raises(
        SettingError, match=r"training\.freeze: classifier\.bias, classifier\.weight start with new weights"
    ):
        started(bert(), copies(bert("BertModel")), "new", ("classifier",))


def test_a_plain_module_takes_the_names_as_they_are() -> None:
    layer = torch.nn.Linear(2, 3)
    with pytest.raises(SettingError, match="not of this recipe's model: they lack bias, weight"):
        started(layer, {"0.weight": torch.ones(3, 2)})


# --- trainings


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    return write_transformers(tmp_path / "recipe")


@pytest.fixture
def given(recipe: str) -> Weights:
    """Weights of the recipe's model, from another seed than any training has."""
    torch.manual_seed(99)
    return copies(build_module(load(recipe)[0], (1, 8, 8), 10).recipe_module)


class TestFineTuned(TrainerContract):
    @pytest.fixture(autouse=True)
    def _recipe(self, small_version: DatasetVersion, recipe: str, given: Weights) -> None:
        self.version, self.recipe, self.given = small_version, recipe, given

    def job(self, home: Home) -> TrainingJob:
        job = small_job(home, self.version, self.recipe, training={**FROZEN, "freeze": ["vit.embeddings"]})
        return starting_from(job, self.given)


def test_frozen_parts_keep_their_bits_and_the_rest_is_trained(
    home: Home, small_version: DatasetVersion, recipe: str, given: Weights
) -> None:
    frozen = [name for name in given if name.startswith(("vit.embeddings.", "vit.layers.0.attention."))]
    parts = ["vit.embeddings", "vit.layers.0.attention"]
    job = small_job(home, small_version, recipe, training={**FROZEN, "freeze": parts, "weight_decay": 0.1})
    weights = load_weights(Path(launch(starting_from(job, given)).weights))
    assert len(frozen) > 4
    assert sorted(equal_names(weights, given)) == sorted(frozen)


def test_dropout_of_frozen_modules_is_off(
    home: Home, small_version: DatasetVersion, recipe: str, given: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: set[tuple[bool, bool]] = set()
    from transformers.models.vit.modeling_vit import ViTEmbeddings

    forward = ViTEmbeddings.forward

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled():
            modes.add((self.training, self.dropout.training))
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(ViTEmbeddings, "forward", watched)
    own = {"init_from": "champion", "freeze": ["vit.embeddings"], "epochs": 1}
    launch(starting_from(small_job(home, small_version, recipe, training=own), given))
    assert modes == {(False, False)}


def test_a_model_that_changes_frozen_parts_is_refused(
    home: Home, tmp_path: Path, small_version: DatasetVersion
) -> None:
    moving = (
        "    return ViTForImageClassification(",
        "    class Moving(ViTForImageClassification):\n"
        "        def forward(self, *args, **kwargs):\n"
        "            if self.training:\n"
        "                self.vit.layernorm.bias.data.add_(1)\n"
        "            return super().forward(*args, **kwargs)\n\n"
        "    return Moving(",
    )
    recipe = write_transformers(tmp_path / "moving", moving)
    given = copies(build_module(load(recipe)[0], (1, 8, 8), 10).recipe_module)
    own = {"init_from": "champion", "freeze": ["vit.layernorm"], "epochs": 1}
    job = starting_from(small_job(home, small_version, recipe, training=own), given)
    with pytest.raises(
        TrainingError, match=r"training\.freeze: vit\.layernorm\.bias changed in the training"
    ):
        launch(job)
    assert not job.paths.model.exists()


@pytest.mark.parametrize("part", [0.1, 0.6])
def test_a_crash_at_any_step_changes_no_bit(
    part: float,
    home: Home,
    tmp_path: Path,
    small_version: DatasetVersion,
    recipe: str,
    given: Weights,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = {"init_from": "champion", "freeze": ["vit.embeddings"]}

    def job(where: Home) -> TrainingJob:
        made = small_job(where, small_version, recipe, training=own, checkpoint={"every_steps": 3})
        return starting_from(made, given)

    calm = job(Home(tmp_path / "calm"))
    trained = launch(calm)
    hit = job(home)
    crash_at(part * trained.steps, hit, monkeypatch)
    assert outcome(hit, launch(hit)) == outcome(calm, trained)
    assert len(read_attempts(hit.paths)) == 2
