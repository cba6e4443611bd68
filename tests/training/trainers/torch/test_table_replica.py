"""Steps and sums of a network on a table: regression and classification."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as functional
from small_tables import alone, columns_of, described, on_table, plain_steps, values

from training.errors import SettingError, TrainingError
from training.records import DatasetVersion
from training.trainers.network.feeds import Batch
from training.trainers.network.inputs import encoder_of
from training.trainers.torch.replica import Replica
from training.trainers.torch.trainer import check_dataset

INPUTS = values()
PRICES = 1000 + 300 * np.random.default_rng(1).normal(size=len(INPUTS)) + 50 * INPUTS[:, 0]
LABELS = np.random.default_rng(2).integers(0, 2, len(INPUTS))
REGRESSION, CLASSES = described(INPUTS, PRICES), described(INPUTS)


def replica(version: DatasetVersion, build: Any = None, **training: Any) -> Replica:
    return Replica(on_table(version, build), version, plain_steps(**training), alone(), total_steps=100)


def batch(targets: np.ndarray, rows: np.ndarray) -> Batch:
    return Batch(torch.from_numpy(INPUTS[rows]), torch.from_numpy(targets[rows]), rows, len(rows))


def weights(built: Replica) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten().clone() for parameter in built.module.parameters()])


def test_a_step_of_a_regression_goes_down_the_gradient_of_the_mean_squared_error() -> None:
    built, rows = replica(REGRESSION, learning_rate=0.1), np.arange(31)
    model = torch.nn.Linear(5, 1)
    model.load_state_dict(built.module.state_dict())
    features = encoder_of(REGRESSION)(torch.from_numpy(INPUTS[rows]))
    standardised = torch.from_numpy((PRICES[rows] - PRICES.mean()) / PRICES.std()).float()
    torch.autograd.backward(functional.mse_loss(model(features)[:, 0], standardised))
    before = weights(built)
    losses, scores = built.step(batch(PRICES, rows), 0, 0)
    gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])  # type: ignore[union-attr]
    assert torch.allclose(weights(built) - before, -0.1 * gradient, atol=1e-6)
    assert gradient.abs().max() > 1e-2
    with torch.no_grad():
        predicted = model(features)[:, 0].double() * PRICES.std() + PRICES.mean()
        errors = predicted - torch.from_numpy(PRICES[rows])
        summed = functional.mse_loss(model(features)[:, 0], standardised, reduction="sum")
    assert float(losses) == pytest.approx(float(summed), rel=1e-6)
    assert built.objective.reduced(float(scores), len(rows)) == pytest.approx(
        float(errors.square().mean().sqrt()), rel=1e-9
    )


@pytest.mark.parametrize(("version", "targets"), [(REGRESSION, PRICES), (CLASSES, LABELS)])
def test_sums_do_not_depend_on_how_a_batch_is_divided(version: DatasetVersion, targets: np.ndarray) -> None:
    built, rows = replica(version), np.arange(len(INPUTS))
    whole = built.add_gradients(batch(targets, rows), 0, 0, 0, 1.0)
    gradient = torch.cat([parameter.grad.flatten() for parameter in built.module.parameters()])  # type: ignore[union-attr]
    for parts in ([17, 23], [1, 1, 38]):
        built.optimizer.zero_grad()
        places = np.split(rows, np.cumsum(parts)[:-1])
        sums = [built.add_gradients(batch(targets, part), 0, 0, 0, 1.0) for part in places]
        for total, added in zip(whole, map(sum, zip(*sums, strict=True)), strict=True):
            assert float(added) == pytest.approx(float(total), rel=1e-6)
        again = torch.cat([parameter.grad.flatten() for parameter in built.module.parameters()])  # type: ignore[union-attr]
        assert torch.allclose(again, gradient, rtol=1e-4, atol=1e-4)


def test_validation_of_a_regression_gives_the_root_of_the_mean_squared_error() -> None:
    built, rows = replica(REGRESSION), np.arange(3, 40)
    loss, score = built.validate(columns_of(INPUTS, PRICES), rows)
    with torch.no_grad():
        output = built.module(encoder_of(REGRESSION)(torch.from_numpy(INPUTS[rows])))[:, 0].double().numpy()
    errors = output * PRICES.std() + PRICES.mean() - PRICES[rows]
    assert score == pytest.approx(np.sqrt((errors**2).mean()), rel=1e-6)
    assert loss == pytest.approx(((errors / PRICES.std()) ** 2).mean(), rel=1e-5)


def test_validation_of_a_classification_gives_the_accuracy() -> None:
    built, rows = replica(CLASSES), np.arange(40)
    _, score = built.validate(columns_of(INPUTS, LABELS), rows)
    with torch.no_grad():
        predicted = built.module(encoder_of(CLASSES)(torch.from_numpy(INPUTS))).argmax(1).numpy()
    assert score == (predicted == LABELS).mean()
    assert 0 < score < 1


def test_virtual_shards_add_up_to_the_same_numbers() -> None:
    from training.trainers.torch.virtual_shards import ShardedReplica

    settings = plain_steps(virtual_shards=4, global_batch_size=40)
    sharded = ShardedReplica(on_table(REGRESSION), REGRESSION, settings, alone(), total_steps=100)
    columns, rows = columns_of(INPUTS, PRICES), np.arange(40)
    assert sharded.validate(columns, rows) == pytest.approx(
        replica(REGRESSION).validate(columns, rows), rel=1e-6
    )


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([torch.nn.Linear(11, 1)], "its model refuses rows of 5 features"),
        ([torch.nn.Linear(5, 3)], r"shape \(2, 3\); 1 outputs need \(2, 1\)"),
        ([torch.nn.Linear(5, 1), torch.nn.Flatten(0)], r"shape \(2,\); 1 outputs need \(2, 1\)"),
    ],
)
def test_a_model_that_does_not_fit_the_table_is_refused(layers: list[Any], message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        replica(REGRESSION, lambda *_: torch.nn.Sequential(*layers))


@pytest.mark.parametrize(
    ("training", "targets", "message"),
    [
        ({"channels_last": True}, None, r"training\.channels_last: only images"),
        (
            {"label_smoothing": 0.1},
            np.arange(40.0),
            r"training\.label_smoothing: only classification has labels to smooth, and this is regression",
        ),
    ],
)
def test_what_only_images_or_classes_have_is_refused(
    training: dict[str, Any], targets: np.ndarray | None, message: str
) -> None:
    version = described(values(), targets)
    with pytest.raises(SettingError, match=message):
        check_dataset(plain_steps(**training), version)
