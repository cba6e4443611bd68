"""The arithmetic of `training.strategy=deepspeed` in two processes: that of one process with all rows, by any stage."""

import os
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from small_runs import tiny_settings, write_recipe

from training.checkpoints.parts import separate, whole, with_parts, write_part
from training.data.dataset import Columns, open_columns
from training.errors import SettingError
from training.recipe import load
from training.records import DatasetVersion
from training.trainers.network import validation
from training.trainers.network.feeds import Batch
from training.trainers.own_loop.replay import _state
from training.trainers.ranks import Ranks
from training.trainers.torch.replica import Replica

# Not imported here: the processes of the test must import the library as a worker does.
missing = find_spec("deepspeed") is None
pytestmark = [
    pytest.mark.frameworks,
    pytest.mark.skipif(missing, reason="install the extras by: make setup EXTRAS=all"),
]

MODEL = """nn.Sequential(
        nn.Flatten(), nn.Linear(64, 33), nn.LayerNorm(33), nn.GELU(), nn.Linear(33, 33), nn.Linear(33, classes))"""
CASES: dict[str, dict[str, Any]] = {
    "adamw": {"optimizer": "adamw", "clip_norm": 0.5},
    "adam": {"optimizer": "adam", "schedule": "one_cycle"},
    "sgd": {"optimizer": "sgd", "learning_rate": 0.1},
    "plain": {"optimizer": "sgd", "learning_rate": 0.1, "momentum": 0.0, "clip_norm": 0.1},
    "bfloat16": {"precision": "bfloat16", "optimizer": "sgd", "learning_rate": 0.1},
    "frozen": {"init_from": "champion", "freeze": "1"},
    # more passes than a rank has rows in the last step
    "passes": {"accumulation_steps": 4, "global_batch_size": 120, "clip_norm": 0.5},
}
STAGES = (0, 1, 2, 3)
ROWS = (120, 31, 5)  # of each step, on all ranks
VALIDATION = (range(300), range(201), range(1))


def replica_of(recipe: str, version: DatasetVersion, ranks: Ranks, case: str, stage: int) -> Replica:
    from training.trainers.torch.zero import ZeroReplica

    settings = tiny_settings(
        training={"augment": False, "global_batch_size": 120, "strategy": "deepspeed", "zero_stage": stage}
        | CASES[case]
    )
    initial = None
    if case == "frozen":
        plain = Replica(load(recipe)[0], version, tiny_settings(), Ranks.of_this_process(False), 10)
        initial = {name: tensor + 0.01 for name, tensor in plain.module.state_dict().items()}
    kind = ZeroReplica if ranks.distributed else Replica
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


def stored(replica: Replica, folder: Path, ranks: Ranks) -> dict[str, Any]:
    """The state as a checkpoint gives it, after each rank has written its part to the folder `folder`."""
    rest, rows = separate(replica.state())
    write_part(folder, ranks.rank, rows)
    ranks.barrier()
    return with_parts(deepcopy(rest), folder, ranks.world_size)


def bits(replica: Replica) -> dict[str, bytes]:
    """The bytes of each tensor that this rank holds, by name."""
    return {name: tensor.cpu().contiguous().numpy().tobytes() for name, tensor in _state(replica).items()}


def check_resumed(
    replica: Replica, states: list[dict[str, Any]], build: Callable[[], Replica], step: Batch
) -> None:
    """A new replica with any of the states has the same bits as `replica`, and after a step again."""
    others = []
    for state in states:
        others.append(build())
        others[-1].load(deepcopy(state))  # torch's optimizers take tensors without a copy
        assert bits(others[-1]) == bits(replica)
    for learner in (replica, *others):
        learner.step(step, 1, 7)
    for other in others:
        assert bits(other) == bits(replica)


def _train(rank: int, folder: Path, recipe: str, version: DatasetVersion) -> None:
    torch.set_num_threads(1)
    os.environ["HOME"], os.environ["PATH"] = str(folder / "home"), "/nothing"  # so no compiler is found
    os.chdir(folder / "here")
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    validation._MOST_ROWS = 100
    ranks, columns = Ranks(rank, 2, torch.device("cpu"), distributed=True), open_columns(version, "train")
    results = {}
    with (folder / f"output-{rank}").open("w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
        for case in CASES:
            for stage in STAGES:
                replica = replica_of(recipe, version, ranks, case, stage)
                scores = trained(replica, columns, ranks)
                state = stored(replica, folder / f"{case}-{stage}", ranks)
                results[case, stage] = (scores, whole(state))
                build = partial(replica_of, recipe, version, ranks, case, stage)
                # As two workers wrote it, and as one worker would have written it.
                check_resumed(replica, [state, whole(state)], build, batch(columns, 150, 120, ranks))
    torch.save(results, folder / f"rank-{rank}")
    dist.destroy_process_group()


def test_two_processes_train_as_one(small_version: DatasetVersion, tmp_path: Path) -> None:
    for name in ("home", "here"):
        (tmp_path / name).mkdir()
    recipe = write_recipe(tmp_path, MODEL)
    try:
        mp.spawn(_train, args=(tmp_path, recipe, small_version), nprocs=2, join=True)
    finally:
        output = [(tmp_path / f"output-{rank}").read_text() for rank in range(2)]
    assert output == ["", ""], output[0]
    assert [*(tmp_path / "home").rglob("*")] == [*(tmp_path / "here").rglob("*")] == []
    first, second = (torch.load(tmp_path / f"rank-{rank}", weights_only=True) for rank in range(2))
    alone, columns = Ranks.of_this_process(use_gpu=False), open_columns(small_version, "train")
    for case in CASES:
        replica = replica_of(recipe, small_version, alone, case, 0)
        scores = trained(replica, columns, alone)
        tolerance = {"rtol": 2e-2, "atol": 2e-3} if case == "bfloat16" else {"rtol": 1e-4, "atol": 1e-6}
        wanted = _state(replica)
        for stage in STAGES:
            for rank_scores, state in (first[case, stage], second[case, stage]):
                other = replica_of(recipe, small_version, alone, case, stage)
                other.load(deepcopy(state))  # one worker reads the checkpoint of two
                assert _state(other).keys() == wanted.keys()
                for name, tensor in _state(other).items():
                    text = f"stage {stage}, {case}, {name}"
                    torch.testing.assert_close(tensor, wanted[name], msg=text, **tolerance)
                torch.testing.assert_close(torch.tensor(rank_scores), torch.tensor(scores), **tolerance)


@pytest.mark.parametrize(
    ("weight", "message"),
    [
        ("nn.Linear(1, 1).weight[0, 0]", r"2.scale is a single number; .* shape \(1,\)"),
        (
            "nn.Linear(1, 1).double().weight",
            r"float32 weights, and 2.scale is torch.float64; .* training.strategy=ddp",
        ),
    ],
)
def test_weights_that_can_not_be_divided_are_refused(
    small_version: DatasetVersion, tmp_path: Path, weight: str, message: str
) -> None:
    recipe = Path(
        write_recipe(tmp_path, "nn.Sequential(nn.Flatten(), nn.Linear(64, classes), Scale())", name="scaled")
    )
    scaled = f"""
    class Scale(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter({weight}.detach())

        def forward(self, values):
            return self.scale.float() * values

"""
    recipe.write_text(
        recipe.read_text().replace("    from torch import nn\n", f"    from torch import nn\n{scaled}")
    )
    ranks = Ranks(0, 2, torch.device("cpu"), distributed=True)
    with pytest.raises(SettingError, match=f"training.strategy: deepspeed .*{message}"):
        replica_of(str(recipe), small_version, ranks, "adamw", 1)
