"""XGBoost's own errors, real ones: which of them another attempt may solve, and what the user reads."""

import socket
from collections.abc import Callable

import pytest
import torch
import xgboost
from xgboost import collective

from training.errors import EvergreenError, PeerError, ResourceError, TrainingError
from training.trainers.ranks import Ranks
from training.trainers.xgboost.worker import _explained

TWO = Ranks(0, 2, torch.device("cpu"), distributed=True)


def reach_a_tracker_that_is_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    collective.init(
        dmlc_tracker_uri="127.0.0.1", dmlc_tracker_port=port, dmlc_task_id="0", dmlc_timeout=1, dmlc_retry=0
    )


def load_an_infinite_value() -> None:
    xgboost.DMatrix([[float("inf")]])


def load_a_label_that_is_no_number() -> None:
    xgboost.DMatrix([[1.0]], label=[float("nan")])


# Of two workers of XGBoost 3.2.0, one of which was killed, or stopped, in its twentieth round.
KILLED = """[21:20:09] /workspace/src/collective/result.cc:83: [histogram.h:197|21:20:09]:

- [allreduce.cc:135|21:20:09]: Ring Allreduce failed.
- [allreduce.cc:101|21:20:09]: Ring scatter reduce failed, current iteration:0
- [socket.h:79|21:20:09]: Poll error condition:Success code:0
Stack trace:
  [bt] (0) /venv/lib/python3.11/site-packages/xgboost/lib/libxgboost.so(+0x11031e) [0x7f538291031e]
"""
STOPPED = KILLED.replace("socket.h:79", "poll_utils.h:206").replace(
    "Poll error condition:Success code:0", "Poll timeout:8 seconds. Connection timed out"
)
# A permanent error, raised below a function of the communication, and of a column with a misleading name.
PERMANENT = """[21:20:40] /workspace/src/data/data.cc:99: Check failed: valid: column `timeout of socket` is bad
Stack trace:
  [bt] (0) /connect/lib/libxgboost.so(xgboost::collective::ApplyWithLabels+0x24) [0x7f847f31031e]
  [bt] (1) /connect/lib/libxgboost.so(xgboost::collective::Allreduce+0x24) [0x7f847f31031e]
"""


def raising(text: str) -> Callable[[], None]:
    def fail() -> None:
        raise xgboost.core.XGBoostError(text)

    return fail


def error_of(action: Callable[[], None], ranks: Ranks = TWO) -> EvergreenError:
    with pytest.raises(EvergreenError) as caught, _explained(ranks):
        action()
    return caught.value


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        pytest.param(reach_a_tracker_that_is_gone, "Socket error. Connection refused", id="tracker"),
        pytest.param(
            raising(KILLED), "Ring Allreduce failed. Poll error condition:Success code:0", id="killed"
        ),
        pytest.param(
            raising(STOPPED),
            "Ring Allreduce failed. Poll timeout:8 seconds. Connection timed out",
            id="stopped",
        ),
    ],
)
def test_a_lost_worker_is_worth_another_attempt(action: Callable[[], None], reason: str) -> None:
    error = error_of(action)
    # This type, so that the error of the lost worker, if there is one, explains the run's end.
    assert isinstance(error, PeerError)
    assert error.transient
    assert str(error).startswith("a training worker lost the other workers (")
    assert reason in str(error)
    assert "/workspace" not in str(error)


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        pytest.param(load_an_infinite_value, "Input data contains `inf`", id="infinite"),
        pytest.param(load_a_label_that_is_no_number, "Label contains NaN", id="label"),
        pytest.param(raising(PERMANENT), "column `timeout of socket` is bad", id="words in the stack trace"),
    ],
)
def test_a_permanent_error_is_not_taken_for_a_lost_worker(action: Callable[[], None], reason: str) -> None:
    error = error_of(action)
    assert isinstance(error, TrainingError)
    assert str(error).startswith("XGBoost failed: Check failed: valid: ")
    assert reason in str(error)


def test_a_training_of_one_process_has_no_worker_to_lose() -> None:
    assert isinstance(
        error_of(raising(KILLED), Ranks(0, 1, torch.device("cpu"), distributed=False)), TrainingError
    )


def test_too_little_memory_is_said_with_what_helps() -> None:
    error = error_of(raising("std::bad_alloc"))
    assert isinstance(error, ResourceError)
    assert "Make more memory available" in str(error)
