"""Values that code logs on each rank, in real process groups."""

import json
import math
from hashlib import sha256
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from mlflow.utils.validation import _validate_metric_name

from training.trainers.network.logged_values import mean_of_ranks, metric_name
from training.trainers.ranks import Ranks

WORLD = 3


def _reduce(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=WORLD)
    ranks = Ranks(rank, WORLD, torch.device("cpu"), distributed=True)
    means = [
        mean_of_ranks({"b": float(rank), "a": 6.0, "lost": math.nan if rank == 1 else 1.0}, ranks),
        mean_of_ranks({"shared": float(rank)} | ({"own": 5.0} if rank == 0 else {}), ranks),
        mean_of_ranks({}, ranks),
    ]
    (folder / f"rank-{rank}").write_text(json.dumps(means))
    dist.destroy_process_group()


@pytest.mark.extended
def test_all_ranks_get_the_means_and_keep_values_of_one_rank_alone(tmp_path: Path) -> None:
    mp.spawn(_reduce, args=(tmp_path,), nprocs=WORLD, join=True)
    means = [json.loads((tmp_path / f"rank-{rank}").read_text()) for rank in range(WORLD)]
    own = [{"shared": 1.0, "own": 5.0}, {"shared": 1.0}, {"shared": 1.0}]
    assert means == [[{"a": 6.0, "b": 1.0}, own[rank], {}] for rank in range(WORLD)]


def test_a_single_process_keeps_its_finite_values() -> None:
    ranks = Ranks.of_this_process(use_gpu=False)
    assert mean_of_ranks({"a": 2.0, "b": math.inf}, ranks) == {"a": 2.0}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("recall@10", "recall_10"),
        ("f1 (macro), %", "f1 _macro__ _"),
        ("val//loss", "val/loss"),
        ("../../x", "x"),
        ("/a/./b", "a/b"),
        ("größe", "größe"),
        ("@", "_"),
        ("..", "_"),
        ("x" * 300, f"{'x' * 220}-{sha256(b'x' * 300).hexdigest()[:8]}"),
        ("x" * 219 + "/" + "y" * 99, f"{'x' * 219}/-{sha256(b'x' * 219 + b'/' + b'y' * 99).hexdigest()[:8]}"),
    ],
)
def test_names_that_mlflow_does_not_take_are_changed(name: str, expected: str) -> None:
    assert metric_name(name) == expected
    _validate_metric_name(f"loop/{metric_name(name)}")
