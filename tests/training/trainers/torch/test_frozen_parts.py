"""A training starts from given weights, trains all or some parts of them, and ends with the same bits after a crash."""

from pathlib import Path
from typing import Any

import pytest
import torch
from crashes import SAVE_EACH_STEP, crashed, outcome, settings
from small_runs import LINEAR, job_for, write_recipe
from torch import nn

from training.attempts.job import TrainingJob
from training.checkpoints.weights import load_weights, save_weights, weights_digest
from training.errors import DataError, SettingError, TrainingError
from training.recipe import load
from training.records import DatasetVersion
from training.settings.schema import Settings
from training.storage.paths import Home
from training.supervision.launch import launch
from training.trainers.network.fine_tuning import freeze, set_training, take_weights
from training.trainers.network.modules import build_module

NORMED = (
    "nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.5), "
    "nn.Linear(32, classes))"
)
FROZEN = {"init_from": "champion", "freeze": ["1", "2"]}
Weights = dict[str, torch.Tensor]


def model(outputs: int = 10) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, outputs))


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    return write_recipe(tmp_path, NORMED)


@pytest.fixture
def given(recipe: str) -> Weights:
    """Weights of the recipe's model, from another seed than any training has."""
    torch.manual_seed(99)
    module = build_module(load(recipe)[0], (1, 8, 8), 10)
    return {name: tensor.clone() for name, tensor in module.state_dict().items()}


def started(
    home: Home, version: DatasetVersion, options: Settings, recipe: str, given: Weights
) -> TrainingJob:
    """The job of a training that starts from `given`."""
    job = job_for(home, version, options, recipe)
    job.paths.initial.mkdir(parents=True)
    save_weights(given, job.paths.initial_weights)
    return job.model_copy(update={"initial": weights_digest(given)})


# --- weights that fit, and those that do not


def test_all_tensors_are_taken_also_running_statistics() -> None:
    source, target = model(), model()
    source[1].running_mean += 3
    assert (
        take_weights(target, {name: each.double() for name, each in source.state_dict().items()}, 10, False)
        == set()
    )
    assert weights_digest(target.state_dict()) == weights_digest(source.state_dict())


def test_other_names_are_refused_with_the_lists() -> None:
    weights = model().state_dict()
    weights["2.scale"] = weights.pop("2.bias")
    with pytest.raises(
        SettingError, match=r"they lack 2\.bias; the model has no 2\.scale\. Start from weights"
    ):
        take_weights(model(), weights, 10, True)


def test_another_number_of_classes_is_refused_with_the_remedy_and_starts_a_new_head() -> None:
    here, there = model(12), model(10)
    before = {name: tensor.clone() for name, tensor in here.state_dict().items()}
    with pytest.raises(SettingError) as refused:
        take_weights(here, there.state_dict(), 12, False)
    assert "2.weight (10, 8) there, (12, 8) here, 2.bias (10,) there, (12,) here." in str(refused.value)
    assert "training.init_head=new" in str(refused.value)
    assert take_weights(here, there.state_dict(), 12, True) == {"2.weight", "2.bias"}
    for name, now in here.state_dict().items():
        assert torch.equal(now, before[name] if name.startswith("2.") else there.state_dict()[name])


def test_other_shapes_than_the_head_s_are_refused_in_any_case() -> None:
    wide = nn.Sequential(nn.Linear(4, 9), nn.BatchNorm1d(9), nn.Linear(9, 10))
    for new_head in (False, True):
        with pytest.raises(SettingError, match=r"0\.weight \(9, 4\) there, \(8, 4\) here.*of the same model"):
            take_weights(model(12), wide.state_dict(), 12, new_head)
    grey, colour = (nn.Sequential(nn.Conv2d(channels, 8, 3), nn.Linear(8, 1)) for channels in (1, 3))
    with pytest.raises(
        SettingError, match=r"0\.weight \(8, 3, 3, 3\) there, \(8, 1, 3, 3\) here.*same model"
    ):
        take_weights(grey, colour.state_dict(), 1, True)  # one channel, and one output
    single, triple = (nn.Sequential(nn.Linear(rows, 8), nn.Linear(8, out)) for rows, out in ((1, 1), (3, 5)))
    with pytest.raises(SettingError, match="of the same model"):  # 3 and 5 are not the outputs of one head
        take_weights(single, triple.state_dict(), 1, True)
    linear = nn.Sequential(nn.Linear(4, 3))
    with pytest.raises(SettingError, match="of the same model"):  # a head alone: nothing would be taken
        take_weights(nn.Sequential(nn.Linear(4, 2)), linear.state_dict(), 2, True)


# --- frozen parts


def test_a_part_is_a_module_or_a_parameter_by_its_whole_name() -> None:
    module = nn.Sequential(*(nn.Linear(2, 2) for _ in range(11)))
    frozen = freeze(module, ["1", "3.bias"], set())
    assert frozen == [module[1]]
    assert [name for name, parameter in module.named_parameters() if not parameter.requires_grad] == [
        "1.weight",
        "1.bias",
        "3.bias",
    ]


@pytest.mark.parametrize(
    ("parts", "new", "message"),
    [
        (["3"], set(), r"no part '3'; it has 0\.weight, 0\.bias, 1\.weight, 1\.bias, 2\.weight, 2\.bias"),
        (["0", "1", "2"], set(), "0, 1, 2 leave no parameter to train"),
        (["2"], {"2.weight"}, r"2\.weight start with new weights"),
    ],
)
def test_parts_that_can_not_be_frozen_are_refused(parts: list[str], new: set[str], message: str) -> None:
    with pytest.raises(SettingError, match=r"training\.freeze: .*" + message):
        freeze(model(), parts, new)


def test_frozen_modules_stay_in_evaluation_mode() -> None:
    module = model()
    set_training(module, freeze(module, ["0", "1"], set()))
    assert [layer.training for layer in module] == [False, False, True]


# --- trainings


@pytest.mark.parametrize("shards", [None, 3])
def test_a_frozen_part_keeps_its_bits_and_the_rest_is_trained(
    home: Home, small_version: DatasetVersion, recipe: str, given: Weights, shards: int | None
) -> None:
    given["2.running_mean"] = torch.rand(32)  # (x + x + x) / 3 is not always x
    options = settings(training={**FROZEN, "virtual_shards": shards})
    job = started(home, small_version, options, recipe, given)
    trained = launch(job)
    weights = load_weights(Path(trained.weights))
    same = [name for name in weights if torch.equal(weights[name], given[name])]
    assert same == [name for name in weights if name.startswith(("1.", "2."))]
    assert trained.reproducible is True


def test_the_training_starts_where_the_weights_are(
    home: Home, small_version: DatasetVersion, recipe: str
) -> None:
    first = launch(job_for(home, small_version, settings(), recipe))
    weights = load_weights(Path(first.weights))
    job = started(Home(home.root / "next"), small_version, settings(seed=1), recipe, weights)
    assert launch(job).history[0].train_loss < first.history[0].train_loss


@pytest.mark.extended
@pytest.mark.parametrize(
    "training", [{}, FROZEN, {**FROZEN, "virtual_shards": 2}], ids=["all", "some", "shards"]
)
def test_a_crash_changes_no_bit(
    home: Home, small_version: DatasetVersion, recipe: str, given: Weights, training: dict[str, Any]
) -> None:
    options = settings(training=training, **SAVE_EACH_STEP)
    calm = started(Home(home.root / "calm"), small_version, options, recipe, given)
    undisturbed = outcome(calm, launch(calm))
    job = started(home, small_version, options, recipe, given)
    crashed(job, 0)
    crashed(job, 3)
    assert outcome(job, launch(job)) == undisturbed


def test_changed_weights_are_refused(
    home: Home, small_version: DatasetVersion, recipe: str, given: Weights
) -> None:
    job = started(home, small_version, settings(), recipe, given)
    save_weights(given | {"1.bias": given["1.bias"] + 1}, job.paths.initial_weights)
    with pytest.raises(DataError, match=r"not the weights that the run was planned with .* Remove .*initial"):
        launch(job)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_two_workers_get_the_weights_by_the_store_and_leave_the_frozen_parts(
    home: Home, small_version: DatasetVersion, recipe: str, given: Weights, tmp_path: Path
) -> None:
    storage = {"url": f"file://{tmp_path}/store", "node_cache": str(tmp_path / "node")}
    options = settings(training=FROZEN, scaling={"num_workers": 2}, storage=storage, ray={"num_cpus": 2})
    trained = launch(started(home, small_version, options, recipe, given))
    weights = load_weights(Path(trained.weights))
    assert trained.world_size == 2
    for name, tensor in weights.items():
        assert torch.equal(tensor, given[name]) == name.startswith(("1.", "2."))


@pytest.mark.extended
@pytest.mark.usefixtures("ray_session")
def test_a_parameter_that_the_model_does_not_use_is_named_on_several_workers(
    home: Home, small_version: DatasetVersion, tmp_path: Path
) -> None:
    spare = "m.register_parameter('spare', nn.Parameter(nn.Linear(1, 1).weight.detach()))"
    recipe = write_recipe(tmp_path / "unused", f"(lambda m: ({spare}, m)[1])({LINEAR})")
    job = job_for(home, small_version, settings(scaling={"num_workers": 2, "cpus_per_worker": 0.5}), recipe)
    with pytest.raises(TrainingError, match="does not use its parameter spare, and several workers"):
        launch(job)
