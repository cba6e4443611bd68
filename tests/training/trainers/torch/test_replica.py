"""The arithmetic of one step: the mean over the global batch, however the batch is divided."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as functional
from small_runs import LINEAR, tiny_settings, write_recipe

from evergreen import Digits, Recipe
from training.checkpoints.state_copies import StateCopies
from training.checkpoints.weights import weights_digest
from training.data.dataset import Columns, open_columns
from training.data.images.augmentation import normaliser
from training.errors import TrainingError
from training.recipe import load
from training.records import DatasetVersion
from training.trainers.network.feeds import Batch
from training.trainers.network.modules import build_module
from training.trainers.ranks import Ranks
from training.trainers.torch.replica import Replica
from training.trainers.torch.virtual_shards import ShardedReplica

# A step without momentum and weight decay changes the weights by a multiple of the gradient.
PLAIN = {
    "optimizer": "sgd",
    "momentum": 0.0,
    "weight_decay": 0.0,
    "learning_rate": 1.0,
    "schedule": "constant",
}
NORMED = (
    "nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, classes))"
)
DROPOUT = "nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, classes))"


@pytest.fixture(scope="module")
def columns(small_version: DatasetVersion) -> Columns:
    return open_columns(small_version, "train")


@pytest.fixture
def replica(tmp_path: Path, small_version: DatasetVersion) -> Callable[..., Replica]:
    """Creates a replica of a model, given as an expression, for a rank; further arguments are training settings."""

    def made(
        model: str = LINEAR, rank: int = 0, world_size: int = 1, seed: int = 0, **training: Any
    ) -> Replica:
        recipe, _ = load(write_recipe(tmp_path, model, augmentation="shift=1, flip=True"))
        settings = tiny_settings(
            seed=seed, training={"augment": False, "warmup_share": 0.0, **PLAIN, **training}
        )
        ranks = Ranks(rank, world_size, torch.device("cpu"), distributed=False)
        kind = ShardedReplica if "virtual_shards" in training else Replica
        return kind(recipe, small_version, settings, ranks, total_steps=100)

    return made


def batch(columns: Columns, rows: range | np.ndarray = range(31), global_rows: int | None = None) -> Batch:
    chosen = np.asarray(rows)
    images, labels = torch.from_numpy(columns.inputs[chosen]), torch.from_numpy(columns.targets[chosen])
    return Batch(images, labels, chosen, global_rows or len(chosen))


def weights(replica: Replica) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten().clone() for parameter in replica.module.parameters()])


def moved(replica: Replica, step_batch: Batch, epoch: int = 0, step: int = 0) -> torch.Tensor:
    """The change of the weights in one step."""
    before = weights(replica)
    replica.step(step_batch, epoch, step)
    return weights(replica) - before


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_a_step_goes_down_the_gradient_of_the_mean_loss(
    replica: Callable[..., Replica], columns: Columns, small_version: DatasetVersion, smoothing: float
) -> None:
    built, step_batch = replica(label_smoothing=smoothing, learning_rate=0.5), batch(columns)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    model.load_state_dict(built.module.state_dict())
    pixels = (step_batch.inputs.double() / 255 - small_version.mean[0]) / small_version.std[0]
    logits = model(pixels.float())
    functional.cross_entropy(logits, step_batch.targets, label_smoothing=smoothing).backward()
    gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    losses, hits = built.step(step_batch, 0, 0)
    change = weights(built) - torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    assert torch.allclose(change, -0.5 * gradient, atol=1e-6)
    assert change.abs().max() > 1e-3
    summed = functional.cross_entropy(logits, step_batch.targets, reduction="sum", label_smoothing=smoothing)
    assert torch.allclose(losses, summed.double().detach(), rtol=1e-5)
    assert hits == (logits.argmax(1) == step_batch.targets).sum()


@pytest.mark.parametrize("passes", [2, 3, 7])
def test_accumulation_does_not_change_a_step(
    replica: Callable[..., Replica], columns: Columns, passes: int
) -> None:
    # Each number of passes divides 42 rows; none of them divides a rest of 31.
    size = {"global_batch_size": 42}
    for rows in (range(42), range(31)):
        whole = moved(replica(**size), batch(columns, rows))
        parts = moved(replica(**size, accumulation_steps=passes), batch(columns, rows))
        assert torch.allclose(parts, whole, atol=1e-6)
        assert whole.abs().max() > 1e-3


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_the_mean_over_ranks_is_the_step_of_one(
    replica: Callable[..., Replica], columns: Columns, world_size: int
) -> None:
    """31 rows give ranks unequal shares. DDP averages gradients over ranks, as the test does by hand."""
    alone = moved(replica(), batch(columns))
    shares = np.array_split(np.arange(31), world_size)
    each = [
        moved(replica(rank=rank, world_size=world_size), batch(columns, share, 31))
        for rank, share in enumerate(shares)
    ]
    assert torch.allclose(torch.stack(each).mean(0), alone, atol=1e-6)
    assert alone.abs().max() > 1e-3


def test_gradients_are_clipped_to_the_norm(replica: Callable[..., Replica], columns: Columns) -> None:
    free = moved(replica(), batch(columns))
    assert free.norm() > 0.1
    assert torch.allclose(
        moved(replica(clip_norm=0.1), batch(columns)), free * (0.1 / free.norm()), atol=1e-6
    )
    assert torch.allclose(moved(replica(clip_norm=1000.0), batch(columns)), free)


def test_the_learning_rate_is_that_of_the_step(replica: Callable[..., Replica], columns: Columns) -> None:
    early = moved(replica(schedule="step"), batch(columns), step=0)
    late = moved(replica(schedule="step"), batch(columns), step=50)
    assert torch.allclose(late, early / 10, atol=1e-6)


def test_initial_weights_depend_on_the_seed_alone(replica: Callable[..., Replica]) -> None:
    torch.manual_seed(123)
    first = weights(replica(seed=1))
    torch.rand(7)
    assert torch.equal(weights(replica(seed=1, rank=1, world_size=2)), first)
    assert not torch.equal(weights(replica(seed=2)), first)


def test_dropout_depends_on_seed_step_and_rank_and_on_nothing_before(
    replica: Callable[..., Replica], columns: Columns
) -> None:
    def change(step: int = 3, **options: Any) -> torch.Tensor:
        return moved(replica(DROPOUT, **options), batch(columns), step=step)

    first = change()
    torch.rand(11)
    assert torch.equal(change(), first)
    assert not torch.equal(change(step=4), first)
    assert not torch.allclose(change(rank=1, world_size=2) / 2, first, atol=1e-4)


def test_augmentation_is_of_the_epoch(replica: Callable[..., Replica], columns: Columns) -> None:
    first = moved(replica(augment=True), batch(columns), epoch=0)
    assert torch.equal(moved(replica(augment=True), batch(columns), epoch=0), first)
    assert not torch.allclose(moved(replica(augment=True), batch(columns), epoch=1), first, atol=1e-4)
    assert not torch.allclose(moved(replica(), batch(columns), epoch=0), first, atol=1e-4)


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd"])
def test_going_on_from_a_state_is_going_on(
    replica: Callable[..., Replica], columns: Columns, optimizer: str
) -> None:
    options = {"optimizer": optimizer, "momentum": 0.9, "learning_rate": 0.01}
    first = replica(DROPOUT, **options)
    for step in range(3):
        first.step(batch(columns), 0, step)
    copies = StateCopies()
    state, kept = copies.take(first.state()), copies.take(first.state())
    for step in range(3, 6):
        first.step(batch(columns), 0, step)
    assert weights_digest(state["model"]) == weights_digest(kept["model"])
    second = replica(DROPOUT, seed=0, **options)
    second.load(state)
    for step in range(3, 6):
        second.step(batch(columns), 0, step)
    assert weights_digest(second.module.state_dict()) == weights_digest(first.module.state_dict())


@pytest.mark.parametrize("optimizer", ["adamw", "sgd"])
def test_a_state_may_be_copied_until_the_update(
    replica: Callable[..., Replica], columns: Columns, optimizer: str
) -> None:
    built = replica(NORMED, optimizer=optimizer, momentum=0.9, learning_rate=0.01)
    for step in range(3):
        built.step(batch(columns), 0, step)
    at_once, later = StateCopies(), StateCopies()
    before = at_once.take(built.state())
    copied = later.take(built.state(), built.changed_by_update_alone())
    built.before_update = later.fill
    built.step(batch(columns), 0, 3)
    left_out = {tensor.data_ptr() for tensor in built.module.buffers()}
    assert left_out.isdisjoint(built.changed_by_update_alone())
    # Weights, two moments and step count, or weights and momentum.
    assert len(built.changed_by_update_alone()) == (6 * 4 if optimizer == "adamw" else 6 * 2)
    for part in ("model", "optimizer"):
        assert str(before[part]) == str(copied[part])
    assert weights_digest(before["model"]) == weights_digest(copied["model"])


@pytest.mark.parametrize("quietly", [True, False])
def test_weights_that_a_forward_pass_changes_are_copied_at_once(
    replica: Callable[..., Replica], columns: Columns, quietly: bool
) -> None:
    def clamp(module: torch.nn.Module, _inputs: object) -> None:
        for parameter in module.parameters():
            if quietly:  # not seen by torch's version counter
                parameter.data.clamp_(-0.01, 0.01)
            else:  # a bound that no weight reaches yet
                with torch.no_grad():
                    parameter.clamp_(-100, 100)

    built = replica()
    built.module.register_forward_pre_hook(clamp)
    built.step(batch(columns), 0, 0)
    assert built.changed_by_update_alone() == set()


def test_validation_is_the_mean_over_the_rows_without_dropout(
    replica: Callable[..., Replica], columns: Columns, small_version: DatasetVersion
) -> None:
    built, rows = replica(DROPOUT), np.arange(0, 200, 3)
    loss, accuracy = built.validate(columns, rows)
    assert (loss, accuracy) == built.validate(columns, rows)
    assert built.module.training
    built.module.eval()
    with torch.no_grad():
        logits = built.module(
            normaliser(small_version.mean, small_version.std)(torch.from_numpy(columns.inputs[rows]))
        )
    labels = torch.from_numpy(columns.targets[rows])
    assert loss == pytest.approx(functional.cross_entropy(logits, labels).item(), rel=1e-5)
    assert accuracy == pytest.approx((logits.argmax(1) == labels).float().mean().item())


def test_validation_in_several_batches_is_the_same(
    replica: Callable[..., Replica], columns: Columns, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = replica().validate(columns, np.arange(200))
    monkeypatch.setattr("training.trainers.network.validation._MOST_ROWS", 33)
    assert replica().validate(columns, np.arange(200)) == pytest.approx(whole, rel=1e-6)


def test_half_precision_keeps_whole_weights(replica: Callable[..., Replica], columns: Columns) -> None:
    half = replica(precision="bfloat16")
    change = moved(half, batch(columns))
    whole = moved(replica(), batch(columns))
    assert {parameter.dtype for parameter in half.module.parameters()} == {torch.float32}
    assert not torch.equal(change, whole)
    assert torch.allclose(change, whole, atol=0.02)


@pytest.mark.parametrize("training", [{}, {"virtual_shards": 2}], ids=["whole", "virtual shards"])
def test_channels_last_is_the_same_step(
    replica: Callable[..., Replica], columns: Columns, training: dict[str, int]
) -> None:
    model = (
        "nn.Sequential(nn.Conv2d(shape[0], 4, 3), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten(), "
        "nn.Linear(64, classes))"
    )
    step_batch = replace(batch(columns), pieces=(16, 15) if training else ())
    plain = moved(replica(model, **training), step_batch)
    assert torch.allclose(moved(replica(model, channels_last=True, **training), step_batch), plain, atol=1e-5)


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (
            "nn.Sequential(nn.Flatten(), nn.Linear(64, classes + 1))",
            r"gave an output of shape \(2, 11\); 10 classes need \(2, 10\)",
        ),
        ("nn.Conv2d(shape[0], classes, 3)", r"gave an output of shape \(2, 10, 6, 6\)"),
        ("nn.Sequential(nn.Flatten(), nn.Linear(100, classes))", r"refuses images of \(1, 8, 8\)"),
        ("nn.Conv2d(3, classes, 3)", r"refuses images of \(1, 8, 8\)"),
    ],
)
def test_a_model_that_does_not_fit_is_named(
    tmp_path: Path, small_version: DatasetVersion, model: str, said: str
) -> None:
    recipe, _ = load(write_recipe(tmp_path, model))
    with pytest.raises(TrainingError, match=rf"recipe plain: .*{said}"):
        build_module(recipe, small_version.shape, len(small_version.classes))


def test_checking_a_model_leaves_its_statistics_alone(tmp_path: Path, small_version: DatasetVersion) -> None:
    recipe, _ = load(
        write_recipe(
            tmp_path, "nn.Sequential(nn.BatchNorm2d(shape[0]), nn.Flatten(), nn.Linear(64, classes))"
        )
    )
    module = build_module(recipe, small_version.shape, len(small_version.classes))
    assert module.training
    assert module[0].num_batches_tracked == 0
    assert module[0].running_mean.item() == 0


@pytest.mark.parametrize("rows", [19, 22, 25, 57])
def test_a_short_last_step_has_no_pass_of_one_row(
    replica: Callable[..., Replica], columns: Columns, rows: int
) -> None:
    """Batch normalisation refuses a single row."""
    short = batch(columns, range(rows))
    made = replica(NORMED, accumulation_steps=8, global_batch_size=128)
    assert moved(made, short).abs().max() > 0
    sizes = [len(part) for part in made.passes(short.targets, short)]
    assert sum(sizes) == rows
    assert min(sizes) >= 2


def test_passes_of_one_row_are_possible(replica: Callable[..., Replica], columns: Columns) -> None:
    full = batch(columns, range(8))
    made = replica(accumulation_steps=8, global_batch_size=8)
    assert [len(part) for part in made.passes(full.targets, full)] == [1] * 8


LAZY = """
from evergreen import Digits, Recipe


def build_model(shape, classes):
    import torch
    from torch import nn

    class Lazy(nn.Module):
        def __init__(self):
            super().__init__()
            self.head, self.table = nn.Linear(64, classes), None

        def forward(self, images):
            if self.table is None:
                self.table = torch.cos(torch.arange(64.0))
            return self.head(images.flatten(1) * self.head.weight.mean() * self.table)

    return Lazy()


recipe = Recipe("lazy", "keeps a tensor from its first pass", Digits(), build_model=build_model)
"""


def test_a_model_may_keep_tensors_from_its_first_pass(
    tmp_path: Path, small_version: DatasetVersion, columns: Columns
) -> None:
    """The first pass is that of the check of the model."""
    file = tmp_path / "lazy.py"
    file.write_text(LAZY)
    ranks = Ranks(0, 1, torch.device("cpu"), distributed=False)
    made = Replica(load(str(file))[0], small_version, tiny_settings(training=PLAIN), ranks, total_steps=100)
    assert moved(made, batch(columns)).abs().max() > 0


@pytest.mark.parametrize("rows", [2, 3, 5])
def test_a_short_share_of_a_step_has_no_pass_of_one_row(replica: Callable[..., Replica], rows: int) -> None:
    """Of the two workers of a last step of 5 rows, one has 2 of them."""
    made = replica(NORMED, world_size=2, accumulation_steps=4, global_batch_size=16)
    assert made.passes_of(rows) == max(1, rows // 2)
    shards = replica(NORMED, virtual_shards=4, accumulation_steps=2, global_batch_size=16)
    assert shards.passes_of(rows) == min(2, max(1, rows // 2))


class Picked(torch.nn.Linear):
    """A classifier with an integer parameter."""

    def __init__(self) -> None:
        super().__init__(64, 10)
        self.index = torch.nn.Parameter(torch.arange(10), requires_grad=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return super().forward(inputs.flatten(1))[:, self.index]


class Counting(torch.nn.Linear):
    """A classifier that changes some of its buffers in each pass, by content."""

    calls: torch.Tensor
    first: torch.Tensor | None = None  # sum of the inputs of the first pass

    def __init__(self) -> None:
        super().__init__(64, 10)
        self.register_buffer("lowest", torch.full((2,), torch.finfo(torch.float32).min))
        self.register_buffer("infinite", torch.full((2,), -torch.inf))
        self.register_buffer("schedule", torch.tensor([1 / 3, 2 / 3], dtype=torch.float64))
        self.register_buffer("seen", torch.tensor(5))
        self.register_buffer("far", torch.tensor([-3, 2**62], dtype=torch.int64))
        self.register_buffer("calls", torch.tensor(0))
        self.register_buffer("mean", torch.zeros(()))
        self.register_buffer("phase", torch.zeros(2, dtype=torch.complex64))
        self.register_buffer("used", torch.tensor(False))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if self.training:
            with torch.no_grad():
                self.first = inputs.sum() if self.first is None else self.first
                self.get_buffer("seen").add_((inputs > 0).sum())
                self.get_buffer("mean").copy_(inputs.mean())
                self.get_buffer("phase").fill_(1j * inputs.mean())
                self.get_buffer("far").sub_(2**53 + 1)
                self.get_buffer("used").copy_(inputs.sum() == self.first)
                self.calls = self.calls + 1  # another tensor
        return super().forward(inputs.flatten(1))


def replica_of(
    module: Callable[[], torch.nn.Module], version: DatasetVersion, kind: type[Replica], **training: Any
) -> Replica:
    recipe = Recipe("own", "for a test", Digits(), build_model=lambda _, __: module())
    settings = tiny_settings(training={"augment": False, **PLAIN, **training})
    return kind(recipe, version, settings, Ranks.of_this_process(use_gpu=False), total_steps=100)


def test_a_model_may_have_an_integer_parameter(small_version: DatasetVersion, columns: Columns) -> None:
    built = replica_of(Picked, small_version, Replica)
    before = built.module.get_parameter("weight").clone()
    built.step(batch(columns), 0, 0)
    assert not torch.equal(built.module.get_parameter("weight"), before)


def test_virtual_shards_average_statistics_and_keep_other_buffers(
    small_version: DatasetVersion, columns: Columns
) -> None:
    """A buffer that no pass changes keeps its bits; a counter is that of the first shard, however many workers."""
    made = replica_of(Counting, small_version, ShardedReplica, virtual_shards=3)
    given = replace(batch(columns, range(30)), pieces=(10, 10, 10))
    inputs = made.inputs.augmented(given.inputs, given.rows, 0)
    before = {name: each.clone() for name, each in made.module.named_buffers()}
    made.step(given, 0, 0)
    after = dict(made.module.named_buffers())
    for name in ("lowest", "infinite", "schedule"):
        assert torch.equal(after[name], before[name])
    assert after["seen"] == 5 + (inputs[:10] > 0).sum()
    assert after["far"].tolist() == [-3 - 2**53 - 1, 2**62 - 2**53 - 1]
    assert after["calls"] == 1
    assert after["used"]  # true in the first shard alone
    means = [part.mean() for part in inputs.split(10)]
    assert after["mean"].item() == pytest.approx((sum(means) / 3).item(), rel=1e-6)
    assert after["phase"].imag.tolist() == pytest.approx([after["mean"].item()] * 2, rel=1e-6)
