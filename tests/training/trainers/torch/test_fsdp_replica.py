"""The arithmetic of `training.strategy=fsdp` in two processes: that of one process with all rows and all weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from small_runs import tiny_settings, write_recipe
from torch import nn

from training.checkpoints.parts import OwnRows, separate
from training.data.dataset import Columns, open_columns
from training.errors import SettingError
from training.recipe import load
from training.records import DatasetVersion
from training.trainers.network import validation
from training.trainers.network.feeds import Batch
from training.trainers.ranks import Ranks
from training.trainers.torch import fsdp
from training.trainers.torch.fsdp import FsdpReplica
from training.trainers.torch.replica import Replica

MODEL = "nn.Sequential(nn.Flatten(), nn.Linear(64, 33), nn.GELU(), nn.Linear(33, 33), nn.Linear(33, classes))"
CASES: dict[str, dict[str, Any]] = {
    "adamw": {"optimizer": "adamw", "clip_norm": 0.5},
    "sgd": {"optimizer": "sgd", "learning_rate": 0.1},
    # More than the rows of a rank in the last step.
    "passes": {
        "accumulation_steps": 4,
        "global_batch_size": 120,
    },
    "bfloat16": {"precision": "bfloat16", "optimizer": "sgd", "learning_rate": 0.1},
    "frozen": {"init_from": "champion", "freeze": "1"},
}
ROWS = (120, 31, 5)  # of each step, on all ranks
VALIDATION = (range(300), range(201), range(1))


def replica_of(
    kind: type[Replica], recipe: str, version: DatasetVersion, ranks: Ranks, case: str, model: str = ""
) -> Replica:
    settings = tiny_settings(
        training={"augment": False, "global_batch_size": 120, "strategy": "fsdp"} | CASES[case]
    )
    initial = None
    if case == "frozen":
        plain = Replica(load(recipe)[0], version, tiny_settings(), Ranks.of_this_process(False), 10)
        initial = {name: tensor + 0.01 for name, tensor in plain.module.state_dict().items()}
    return kind(load(recipe)[0], version, settings, ranks, 10, initial)


def batch(columns: Columns, start: int, rows: int, ranks: Ranks) -> Batch:
    chosen = np.array_split(np.arange(start, start + rows), ranks.world_size)[ranks.rank]
    images, labels = torch.from_numpy(columns.inputs[chosen]), torch.from_numpy(columns.targets[chosen])
    return Batch(images, labels, chosen, rows)


def trained(replica: Replica, columns: Columns, ranks: Ranks) -> list[tuple[float, float]]:
    """Take a step with each of ROWS; returns the results of validations, of which ranks have unequal shares."""
    for number, rows in enumerate(ROWS):
        replica.step(batch(columns, 100 * number, rows, ranks), 0, number)
    return [replica.validate(columns, np.asarray(rows)) for rows in VALIDATION]


def full(state: dict[str, Any], ranks: Ranks) -> dict[str, torch.Tensor]:
    """The weights of all ranks; gathered, as far as ranks hold rows."""
    _, own = separate(state["model"])
    weights = dict(state["model"])
    for (name,), rows in own.items():
        padded = torch.zeros(rows.shape)
        padded[rows.start : rows.start + len(rows.rows)] = rows.rows
        weights[str(name)] = sum(ranks.gather(padded), start=torch.zeros(rows.shape))
    assert not any(isinstance(value, OwnRows) for value in weights.values())
    return weights


def _train(rank: int, folder: Path, recipe: str, version: DatasetVersion) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    fsdp.UNIT_PARAMETERS = 1000
    validation._MOST_ROWS = 100
    ranks, columns = Ranks(rank, 2, torch.device("cpu"), distributed=True), open_columns(version, "train")
    results = {}
    for case in CASES:
        replica = replica_of(FsdpReplica, recipe, version, ranks, case)
        scores = trained(replica, columns, ranks)
        results[case] = (scores, full(replica.state(), ranks))
    torch.save(results, folder / f"rank-{rank}")
    dist.destroy_process_group()


@pytest.mark.extended
def test_two_processes_train_as_one(small_version: DatasetVersion, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path, MODEL)
    mp.spawn(_train, args=(tmp_path, recipe, small_version), nprocs=2, join=True)
    first, second = (torch.load(tmp_path / f"rank-{rank}", weights_only=True) for rank in range(2))
    alone, columns = Ranks.of_this_process(use_gpu=False), open_columns(small_version, "train")
    for case in CASES:
        replica = replica_of(Replica, recipe, small_version, alone, case)
        scores = trained(replica, columns, alone)
        tolerance = {"rtol": 2e-2, "atol": 2e-3} if case == "bfloat16" else {"rtol": 1e-4, "atol": 1e-6}
        for name, weight in replica.module.state_dict().items():
            for result in (first, second):
                torch.testing.assert_close(result[case][1][name], weight, msg=f"{case} {name}", **tolerance)
        assert first[case][0] == second[case][0]
        torch.testing.assert_close(torch.tensor(first[case][0]), torch.tensor(scores), **tolerance)


def test_units_are_large_elements_of_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fsdp, "UNIT_PARAMETERS", 100)

    class Block(nn.Module):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(size, size), nn.Linear(size, 2))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([Block(10), Block(8), nn.ModuleList([Block(3)])])
            self.head = nn.Linear(30, 30)

    model = Model()
    first, second = model.blocks[0], model.blocks[1]
    assert list(fsdp.units(model)) == [first.inner[0]]
    monkeypatch.setattr(fsdp, "UNIT_PARAMETERS", 60)
    assert list(fsdp.units(model)) == [first.inner[0], second.inner[0]]
    model.head = first.inner[0]
    assert list(fsdp.units(model)) == []


def test_a_weight_without_rows_is_refused(small_version: DatasetVersion, tmp_path: Path) -> None:
    model = "nn.Sequential(nn.Flatten(), nn.Linear(64, classes), Scale())"
    recipe = Path(write_recipe(tmp_path, model, name="scaled"))
    scale = """
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(nn.Linear(1, 1).weight[0, 0].detach())

        def forward(self, values):
            return self.scale * values

"""
    text = recipe.read_text().replace("    from torch import nn\n", f"    from torch import nn\n{scale}")
    recipe.write_text(text)
    ranks = Ranks(0, 2, torch.device("cpu"), distributed=True)
    with pytest.raises(
        SettingError, match=r"training.strategy: .* 2.scale is a single number; .* shape \(1,\)"
    ):
        replica_of(FsdpReplica, str(recipe), small_version, ranks, "adamw")
