"""The device and the number of workers that a run gets on a cluster with given CPUs and GPUs."""

import json
import os
import subprocess
import sys
import tempfile
from typing import Any

import pytest

from training.errors import SettingError
from training.ray_cluster.capacity import leaves_a_cpu, resolve_here
from training.records import DatasetVersion
from training.settings.schema import ScalingSettings, Settings
from training.trainers.base import trainer_named

_PROGRAM = """
import json, os
os.environ |= {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_LOG_TO_DRIVER": "0"}
import ray
from training.errors import SettingError
from training.supervision.launch import _choose_gpu
from training.ray_cluster.capacity import check_accelerator, capacity_for_workers, check_fits_a_node
from training.settings.schema import Settings

def settings(**scaling):
    return Settings.model_validate({"scaling": {"num_workers": 2, **scaling}})

def refusal(act, *given):
    try:
        act(*given)
    except SettingError as error:
        return str(error)

for left in reversed(range(5)):  # Ray gives itself 30 s to start, which a busy machine may miss
    try:
        ray.init(num_cpus=4, num_gpus=1, resources={"accelerator_type:A100": 1}, include_dashboard=False)
        break
    except Exception:
        ray.shutdown()
        if not left:
            raise
elastic, half = settings(min_workers=1), settings(gpus_per_worker=0.5)
print(json.dumps({
    "elastic": _choose_gpu(elastic),
    "elastic, forced": _choose_gpu(settings(min_workers=1, use_gpu="yes")),
    "elastic workers": capacity_for_workers(elastic, "memory", True)[0],
    "elastic workers on CPUs": capacity_for_workers(elastic, "memory")[0],
    "fixed": _choose_gpu(settings()),
    "fixed, forced": refusal(_choose_gpu, settings(use_gpu="yes")),
    "no room": refusal(capacity_for_workers, settings(), "memory", True),
    "halves": _choose_gpu(half),
    "streaming": capacity_for_workers(settings(num_workers=4), "stream"),
    "streaming to many": capacity_for_workers(settings(num_workers=32), "stream"),
    "no room to stream": refusal(capacity_for_workers, settings(num_workers=4, cpus_per_worker=1), "stream"),
    "half workers": capacity_for_workers(half, "memory", True)[0],
    "known accelerator": refusal(check_accelerator, settings(accelerator_type="A100").scaling),
    "other accelerator": refusal(check_accelerator, settings(accelerator_type="H100").scaling),
    "on CPUs only": [
        _choose_gpu(Settings.model_validate({"training": {"trainer": name}})) for name in ("tensorflow", "lightgbm")
    ],
    "a trial": refusal(check_fits_a_node, 4, 1.0),
    "a trial of many CPUs": refusal(check_fits_a_node, 8, 0.0),
    "a trial of two GPUs": refusal(check_fits_a_node, 1, 2.0),
    "any accelerator": refusal(check_accelerator, settings().scaling),
}))
ray.shutdown()
"""


@pytest.fixture(scope="module")
def decided() -> dict[str, Any]:
    """Decisions on a separate Ray cluster with four CPUs and one declared GPU without a device."""
    with tempfile.TemporaryDirectory(
        prefix="eg-", dir="/tmp"
    ) as folder:  # of Ray's sessions, which Ray keeps
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM],
            env=os.environ | {"RAY_TMPDIR": folder},
            capture_output=True,
            text=True,
            check=True,
        )
    decisions: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return decisions


@pytest.mark.slow
def test_as_many_gpus_as_the_fewest_workers_need_are_used(decided: dict[str, Any]) -> None:
    assert decided["elastic"] is decided["elastic, forced"] is True
    assert (decided["elastic workers"], decided["elastic workers on CPUs"]) == (1, 2)


@pytest.mark.extended
def test_a_fixed_number_of_workers_needs_gpus_for_all(decided: dict[str, Any]) -> None:
    assert decided["fixed"] is False
    assert "2 GPUs are needed for 2 workers, there are enough for 1" in decided["fixed, forced"]
    assert "2 workers of 1 CPU and 1 GPU do not fit 4 CPUs and 1 GPUs on 1 nodes" in decided["no room"]
    assert (decided["halves"], decided["half workers"]) == (True, 2)


@pytest.mark.extended
def test_workers_leave_a_cpu_to_a_stream(decided: dict[str, Any]) -> None:
    assert decided["streaming"] == [4, 0.75]
    assert decided["streaming to many"] == [32, 0.0937]
    assert "do not fit 4 CPUs on 1 nodes with a whole CPU of one node left" in decided["no room to stream"]


def test_a_trainer_that_computes_on_cpus_takes_no_gpu(decided: dict[str, Any]) -> None:
    assert decided["on CPUs only"] == [False, False]


def test_gpus_that_lightgbm_never_uses_are_refused(small_version: DatasetVersion) -> None:
    asked = Settings.model_validate({"training": {"trainer": "lightgbm"}, "scaling": {"use_gpu": "yes"}})
    with pytest.raises(SettingError, match=r"scaling\.use_gpu: trainer lightgbm computes on CPUs only"):
        trainer_named("lightgbm").check_dataset(asked, small_version)


def test_a_trial_that_fits_no_node_is_refused(decided: dict[str, Any]) -> None:
    assert decided["a trial"] is None
    assert (
        "a trial takes 8 CPU, and no node has as much: the largest has 4 CPUs"
        in decided["a trial of many CPUs"]
    )
    assert "a trial takes 1 CPU and 2 GPU, and no node" in decided["a trial of two GPUs"]


@pytest.mark.parametrize(
    ("cpus", "workers", "share", "strategy", "left"),
    [
        ((4,), 4, 0.75, "PACK", True),
        ((4,), 4, 0.76, "PACK", False),
        ((2, 2), 4, 0.75, "PACK", False),  # half a CPU on each node: no task of Ray Data would start
        ((2, 2), 4, 0.6, "SPREAD", False),
        ((2, 2), 4, 0.5, "SPREAD", True),
        ((1, 1), 2, 0.5, "PACK", True),
        ((1, 1), 2, 0.5, "SPREAD", False),
        ((1, 1, 1), 2, 1.0, "STRICT_SPREAD", True),
        ((8, 1), 3, 1.0, "SPREAD", True),
    ],
)
def test_a_stream_needs_a_whole_cpu_of_one_node(
    cpus: tuple[int, ...], workers: int, share: float, strategy: str, left: bool
) -> None:
    options = ScalingSettings.model_validate({"placement_strategy": strategy})
    assert bool(leaves_a_cpu([(node_cpus, 0.0) for node_cpus in cpus], workers, share, 0.0, options)) is left


def test_a_node_without_gpus_keeps_its_cpus_for_a_stream() -> None:
    nodes = [(2.0, 2.0), (2.0, 0.0)]
    assert leaves_a_cpu(nodes, 2, 1.0, 1.0, ScalingSettings(placement_strategy="SPREAD"))
    assert not leaves_a_cpu(nodes[:1], 2, 1.0, 1.0, ScalingSettings(placement_strategy="SPREAD"))


@pytest.mark.parametrize(
    ("cpus", "scaling", "said"),
    [
        (1, {"num_workers": 1}, "1 workers leave none of this machine's 1"),
        (2, {"num_workers": 2, "cpus_per_worker": 1}, "2 workers of 1 CPU leave none of this machine's 2"),
        (2, {"num_workers": 2}, ""),
        (3, {"num_workers": 2, "cpus_per_worker": 1}, ""),
    ],
)
def test_too_few_cpus_for_a_stream_are_refused_before_ray_starts(
    cpus: int, scaling: dict[str, Any], said: str
) -> None:
    own = {"ray": {"num_cpus": cpus}, "scaling": scaling}
    resolve_here(Settings(), own)
    if not said:
        resolve_here(Settings(), own, {"data": {"feed": "stream"}})
        return
    with pytest.raises(SettingError, match=f"^data.feed: stream needs a whole CPU.*{said}"):
        resolve_here(Settings(), own, {"data": {"feed": "stream"}})


def test_an_accelerator_that_is_not_there_is_refused_with_what_is_there(decided: dict[str, Any]) -> None:
    assert decided["known accelerator"] is decided["any accelerator"] is None
    assert decided["other accelerator"] == (
        "scaling.accelerator_type: the cluster has no H100; it has A100. Take one of them, or add nodes."
    )
