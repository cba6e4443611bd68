"""LightGBM's rounds: what the replay check may not disturb, rounds without a split, connections of workers."""

import logging
import os
import socket
from typing import Any

import numpy as np
import pytest
import torch
from boosted_tables import boosted_job, bundled, outcome
from small_runs import prepared

from training.checkpoints.checkpoint_files import STATE
from training.data.sources.table import Table
from training.errors import SettingError, TransientError
from training.records import DatasetVersion
from training.storage.paths import Home
from training.supervision.launch import launch
from training.trainers.boosting import replay
from training.trainers.lightgbm import inspection, network
from training.trainers.ranks import Ranks

SAMPLED = {"bagging_fraction": 0.8, "feature_fraction": 0.7}


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> DatasetVersion:
    return bundled(Home(tmp_path_factory.mktemp("table")), "regression")


@pytest.mark.parametrize("seconds", [0.0, 1000.0], ids=["one round", "a whole block"])
def test_a_replay_changes_nothing(
    home: Home, table: DatasetVersion, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay, "_SECONDS", seconds)
    jobs = [
        boosted_job(
            home,
            table,
            name=name,
            trainer="LightGBM",
            training=SAMPLED,
            checkpoint={"every_s": 0.01, "replay": on},
        )
        for name, on in (("with", True), ("without", False))
    ]
    checked, unchecked = (launch(job) for job in jobs)
    assert checked.reproducible is True, checked.reproducible_reason
    assert unchecked.reproducible is None
    assert outcome(jobs[0], checked) == outcome(jobs[1], unchecked)


def test_no_tree_follows_a_round_without_a_split(
    home: Home, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    rows = "\n".join(f"{number % 2},{number}.25,{number % 2}.5" for number in range(400))
    (tmp_path / "two.csv").write_text(f"x,other,y\n{rows}\n")
    version = prepared(home, Table(tmp_path / "two.csv", "y"), "two", problem="regression")
    exact = {"rounds": 30, "learning_rate": 1.0, "min_gain_to_split": 1e-3}
    job = boosted_job(home, version, trainer="LightGBM", training=exact)
    with caplog.at_level(logging.WARNING):
        trained = launch(job)
    assert "round 2 found no split" in caplog.text
    assert len(trained.history) == 30
    assert trained.history[-1].validation_loss < 1e-9
    assert trained.reproducible is True, trained.reproducible_reason


def test_a_model_without_a_split_has_one_digest(home: Home, table: DatasetVersion) -> None:
    """LightGBM writes a tree that it has just grown, and the same tree after loading, as different texts."""
    job = boosted_job(
        home, table, trainer="LightGBM", training={"min_data_in_leaf": 10**6}, checkpoint={"every_s": 0.01}
    )
    trained = launch(job)
    checkpoints = list(job.paths.checkpoints.glob("step-*"))
    assert checkpoints
    for checkpoint in checkpoints:
        state = torch.load(checkpoint / STATE, map_location="cpu", weights_only=True)
        assert inspection.model_digest(state, trained.selected_epoch) == trained.weights_digest


def test_a_port_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "_CONNECT_S", 1.0)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, but nobody listens
        with pytest.raises(TransientError, match=r"can't connect to the worker at 127\.0\.0\.1:\d+"):
            network._try("127.0.0.1", closed.getsockname()[1])


def test_a_first_worker_without_ipv4_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "MASTER_ADDR", "::1")
    with pytest.raises(SettingError, match="no IPv4 address leads to the first worker at ::1"):
        network._own_address()


def test_one_worker_needs_no_network() -> None:
    assert network.network_parameters(Ranks(0, 1, torch.device("cpu"), distributed=False), 300.0) == {}


def test_infinite_gains_give_finite_importances(tmp_path: Any) -> None:
    import lightgbm

    from training.trainers.lightgbm.inspection import importances
    from training.trainers.lightgbm.text import text_of

    values = np.random.default_rng(0).normal(size=(500, 2))
    data = lightgbm.Dataset(
        values, values[:, 0] * 1e25, feature_name=["large", "none"], params={"verbosity": -1}
    )
    (tmp_path / "model.lgb").write_bytes(
        text_of(lightgbm.train({"objective": "regression", "verbosity": -1}, data, 3))
    )
    shares = importances(tmp_path / "model.lgb")
    assert sum(shares.values()) == pytest.approx(1.0)
    assert max(shares, key=lambda name: shares[name]) == "large"
