"""LightGBM's own errors: which of them another attempt may solve, and what the user reads."""

import socket
from collections.abc import Callable

import lightgbm
import numpy as np
import pytest
import torch

from training.errors import EvergreenError, PeerError, ResourceError, TrainingError
from training.trainers.lightgbm.worker import _explained
from training.trainers.ranks import Ranks

ONE, TWO = (Ranks(0, size, torch.device("cpu"), distributed=size > 1) for size in (1, 2))
# Of LightGBM 4.7.0, whose other worker was killed.
KILLED = "Socket recv error, Connection reset by peer (code: 104)"


def connect_by_a_port_in_use() -> None:
    rows = lightgbm.Dataset(np.zeros((10, 1)), np.zeros(10), params={"verbosity": -1})
    with socket.create_server(("", 0)) as taken, socket.create_server(("", 0)) as other:
        own, peer = (opened.getsockname()[1] for opened in (taken, other))
        machines = f"127.0.0.1:{own},127.0.0.1:{peer}"
        network = {"machines": machines, "num_machines": 2, "local_listen_port": own, "time_out": 1}
        lightgbm.Booster({"verbosity": -1} | network, rows)


def raising(text: str) -> Callable[[], None]:
    def fail() -> None:
        raise lightgbm.basic.LightGBMError(text)

    return fail


def error_of(action: Callable[[], None], ranks: Ranks = TWO) -> EvergreenError:
    with pytest.raises(EvergreenError) as caught, _explained(ranks):
        action()
    return caught.value


@pytest.mark.parametrize(
    ("action", "reason"),
    [(connect_by_a_port_in_use, "Binding port"), (raising(KILLED), "Connection reset by peer")],
)
def test_a_lost_connection_is_worth_another_attempt(action: Callable[[], None], reason: str) -> None:
    error = error_of(action)
    # This type, so that the error of the lost worker, if there is one, explains the run's end.
    assert isinstance(error, PeerError)
    assert error.transient
    assert str(error).startswith("a training worker lost the connection to other workers (")
    assert reason in str(error)


def test_a_permanent_error_is_not_taken_for_a_lost_connection() -> None:
    error = error_of(
        lambda: lightgbm.Booster({"objective": "unheard"}, lightgbm.Dataset(np.zeros((10, 1)), np.zeros(10)))
    )
    assert isinstance(error, TrainingError)
    assert str(error).startswith("LightGBM failed: ")
    assert not error.transient
    assert isinstance(error_of(raising(KILLED), ONE), TrainingError)


def test_too_little_memory_is_said_with_what_helps() -> None:
    error = error_of(raising("std::bad_alloc"))
    assert isinstance(error, ResourceError)
    assert "Make more memory available" in str(error)
