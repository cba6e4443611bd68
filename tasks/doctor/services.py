"""Checks of services: the Prefect server, and on request Ray and the GPUs, which take seconds to start."""

import time
from collections.abc import Iterator
from pathlib import Path

from tasks.doctor import Check
from tasks.doctor.credentials import PREFECT_VARIABLES, state_of
from tasks.doctor.prefect_server import Configured, configured_server
from training.http_errors import REFUSED, status_of
from training.ray_cluster.cluster import ray_cluster
from training.ray_cluster.local_ray import sessions_folder
from training.settings.schema import RaySettings, Settings

_TIMEOUT_S = 3.0
_RAY_TIMEOUT_S = 60.0
_NVIDIA = Path("/proc/driver/nvidia/version")


def ray_checks(deep: bool) -> Iterator[Check]:
    """With `deep`, start Ray and ask torch for GPUs; otherwise say that this was not checked."""
    if not deep:
        yield Check(
            name="Ray and GPUs", ok=None, found="not checked", remedy="`evergreen doctor --deep` checks both."
        )
        return
    yield ray_check()
    yield gpu_check()


def prefect_check() -> Check:
    """Check that the configured Prefect server answers, accepts the credentials, and has this client's version."""
    import prefect
    from prefect.client.orchestration import get_client

    server = configured_server()
    if server is None:
        return Check(
            name="Prefect server", ok=None, found="none configured: a local run starts its own server"
        )
    try:
        with get_client(httpx_settings={"timeout": _TIMEOUT_S}, sync_client=True) as client:
            theirs = client.api_version()
    except Exception as error:  # httpx, TLS and JSON raise many kinds
        if status_of(error) in REFUSED:
            return _refused_check(server, status_of(error))
        problem = f"{server.url} ({server.origin}): {type(error).__name__}: {error}"
        return Check(name="Prefect server", ok=False, found=problem, remedy=server.remedy)
    same = theirs == prefect.__version__
    remedy = "" if same else f"Run Prefect {prefect.__version__} on the server, or install {theirs} here."
    return Check(
        name="Prefect server", ok=same, found=f"{server.url} answers, version {theirs}", remedy=remedy
    )


def _refused_check(server: Configured, status: int) -> Check:
    remedy = (
        "Set PREFECT_API_AUTH_STRING to the user:password of the server's PREFECT_SERVER_API_AUTH_STRING; for Prefect "
        f"Cloud, set PREFECT_API_KEY to a key with the permission ({state_of(PREFECT_VARIABLES)})."
    )
    problem = f"{server.url} ({server.origin}) refuses the credentials (status {status})"
    return Check(name="Prefect server", ok=False, found=problem, remedy=remedy)


def ray_check() -> Check:
    """Start Ray with one CPU, run a task, and stop Ray; a Ray to which this process is connected is used instead."""
    began = time.perf_counter()
    try:
        with ray_cluster(Settings(ray=RaySettings(num_cpus=1))):
            import ray

            ray.get(ray.remote(cpus_of_worker).remote(), timeout=_RAY_TIMEOUT_S)
    except Exception as error:  # every failure of Ray is a result of this check
        logs = sessions_folder() / "session_latest" / "logs"
        remedy = f"Read the logs in {logs}; frequent causes: a full /tmp, too little memory, the machine's host name."
        return Check(name="Ray", ok=False, found=f"{type(error).__name__}: {error}", remedy=remedy)
    return Check(
        name="Ray", ok=True, found=f"started, ran a task and stopped in {time.perf_counter() - began:.0f} s"
    )


def cpus_of_worker() -> int:
    """Number of CPUs of a Ray worker; running this function on the worker shows that workers can import Evergreen."""
    from training.machine import available_cpus

    return available_cpus()


def gpu_check() -> Check:
    """Check which GPUs torch sees. If torch sees none, a loaded NVIDIA driver makes the check fail."""
    import torch

    if torch.cuda.is_available():
        names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
        return Check(name="GPUs", ok=True, found=", ".join(names))
    if _NVIDIA.is_file():
        remedy = "Compare the driver's version with torch's CUDA version, and check CUDA_VISIBLE_DEVICES."
        return Check(
            name="GPUs",
            ok=False,
            found=f"an NVIDIA driver, but torch {torch.__version__} detects no GPU",
            remedy=remedy,
        )
    return Check(name="GPUs", ok=None, found="none: training runs on CPUs")
