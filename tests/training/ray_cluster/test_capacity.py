"""The device and the number of workers that a run gets on a cluster with given CPUs and GPUs."""

import json
import os
import subprocess
import sys
import tempfile
from typing import Any

import pytest

_PROGRAM = """
import json, os
os.environ |= {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_LOG_TO_DRIVER": "0"}
import ray
from training.errors import SettingError
from training.supervision.launch import _choose_gpu
from training.ray_cluster.capacity import check_accelerator, capacity_for_workers
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
    "half workers": capacity_for_workers(half, "memory", True)[0],
    "known accelerator": refusal(check_accelerator, settings(accelerator_type="A100").scaling),
    "other accelerator": refusal(check_accelerator, settings(accelerator_type="H100").scaling),
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
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.slow
def test_as_many_gpus_as_the_fewest_workers_need_are_used(decided: dict[str, Any]) -> None:
    assert decided["elastic"] is decided["elastic, forced"] is True
    assert (decided["elastic workers"], decided["elastic workers on CPUs"]) == (1, 2)


def test_a_fixed_number_of_workers_needs_gpus_for_all(decided: dict[str, Any]) -> None:
    assert decided["fixed"] is False
    assert "2 GPUs are needed for 2 workers, there are enough for 1" in decided["fixed, forced"]
    assert "2 workers of 1 CPU and 1 GPU do not fit 4 CPUs and 1 GPUs on 1 nodes" in decided["no room"]
    assert (decided["halves"], decided["half workers"]) == (True, 2)


def test_an_accelerator_that_is_not_there_is_refused_with_what_is_there(decided: dict[str, Any]) -> None:
    assert decided["known accelerator"] is decided["any accelerator"] is None
    assert decided["other accelerator"] == (
        "scaling.accelerator_type: the cluster has no H100; it has A100. Take one of them, or add nodes."
    )
