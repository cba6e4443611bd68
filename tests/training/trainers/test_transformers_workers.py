"""Transformers on real Ray workers: one is killed, and the model stays the same, bit for bit."""

from pathlib import Path

import pytest
import torch
from network_runs import check_a_killed_worker_changes_no_bit, small_job, starting_from
from transformers_runs import write_transformers

from training.checkpoints.weights import load_weights
from training.recipe import load
from training.records import DatasetVersion
from training.storage.paths import Home
from training.supervision.launch import launch
from training.trainers.network.modules import build_module

pytest.importorskip("transformers", reason="install the extras by: make setup EXTRAS=all")
pytestmark = [pytest.mark.frameworks, pytest.mark.slow, pytest.mark.usefixtures("ray_session")]


def test_a_killed_worker_changes_no_bit(home: Home, tmp_path: Path, digits_version: DatasetVersion) -> None:
    recipe = write_transformers(tmp_path / "recipe")
    check_a_killed_worker_changes_no_bit(
        recipe, digits_version, home, calm=Home(tmp_path / "calm"), score=0.6
    )


def test_two_workers_start_from_given_weights_and_leave_the_frozen_parts(
    home: Home, tmp_path: Path, small_version: DatasetVersion
) -> None:
    recipe = write_transformers(tmp_path / "recipe")
    torch.manual_seed(99)
    model = build_module(load(recipe)[0], (1, 8, 8), 10).recipe_module
    given = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    training = {"init_from": "champion", "freeze": ["vit.embeddings"], "epochs": 1}
    job = small_job(home, small_version, recipe, workers=2, training=training)
    trained = launch(starting_from(job, given))
    weights = load_weights(Path(trained.weights))
    assert trained.world_size == 2
    for name, tensor in weights.items():
        assert torch.equal(tensor, given[name]) == name.startswith("vit.embeddings.")
