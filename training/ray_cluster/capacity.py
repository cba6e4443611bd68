"""Capacity for a run's workers on this machine or the cluster, checked before anything waits for resources."""

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from training.errors import SettingError
from training.machine import available_cpus
from training.settings.overrides import merged, validated
from training.settings.schema import RaySettings, ScalingSettings, Settings

log = logging.getLogger("evergreen.capacity")


class NoCapacityError(SettingError):
    """The present nodes of the cluster have too few CPUs or GPUs for the workers."""


def resolve_here(base: Settings, *overrides: Mapping[str, Any]) -> Settings:
    """Resolve the settings of a run that starts on this machine; see :func:`training.settings.overrides.resolve`.

    More workers than CPUs are refused first: the batch-size rule would only report that the batch does not divide
    among so many workers. Raises :class:`SettingError`.
    """
    values = merged(base, *overrides)
    with suppress(ValidationError):  # `validated` explains invalid values
        scaling = ScalingSettings.model_validate(values["scaling"])
        _check_workers_fit(scaling, RaySettings.model_validate(values["ray"]))
    return validated(values)


def _check_workers_fit(scaling: ScalingSettings, ray: RaySettings) -> None:
    """Refuse more workers than this machine has CPUs, before a cluster is started."""
    if ray.address:
        return
    cpus = ray.num_cpus or available_cpus()
    share = scaling.cpus_per_worker or 1
    if scaling.num_workers > cpus or scaling.num_workers * share > cpus:
        raise SettingError(
            f"scaling.num_workers: {scaling.num_workers} workers of {share:g} CPU need more than the {cpus} CPUs of "
            f"this machine. Use at most {int(cpus / max(1.0, share))}, or a cluster (ray.address)."
        )


def check_accelerator(options: ScalingSettings) -> None:
    """Refuse an accelerator type that the connected cluster lacks; Ray would wait until such a node appears.

    Raises :class:`SettingError`, which lists the accelerator types of the cluster.
    """
    import ray

    prefix = "accelerator_type:"
    kinds = sorted(name.removeprefix(prefix) for name in ray.cluster_resources() if name.startswith(prefix))
    if options.accelerator_type is not None and options.accelerator_type not in kinds:
        raise SettingError(
            f"scaling.accelerator_type: the cluster has no {options.accelerator_type}; "
            + (
                f"it has {', '.join(kinds)}. Take one of them"
                if kinds
                else "it has no accelerators at all. Unset it"
            )
            + ", or add nodes."
        )


def workers_with_gpus(options: ScalingSettings) -> int:
    """Number of workers for which the connected cluster has GPUs; all GPUs of a worker are on one node."""
    return sum(int(gpus / options.gpus_per_worker + 1e-9) for _, gpus in _nodes())


def capacity_for_workers(settings: Settings, feed: str, use_gpu: bool = False) -> tuple[int, float]:
    """Number of workers to start on the present nodes of the cluster, and the CPUs to reserve for each worker.

    With feed `stream`, at least one CPU stays free for Ray Data: Ray Data gets only the CPUs that the workers leave,
    and without any CPU it waits forever without an error. Raises :class:`NoCapacityError` when not even
    `scaling.min_workers` workers fit.
    """
    nodes, options = _nodes(), settings.scaling
    all_cpus = sum(cpus for cpus, _ in nodes)
    free = all_cpus - (1 if feed == "stream" else 0)
    fewest = options.min_workers or options.num_workers
    for workers in range(options.num_workers, fewest - 1, -1):
        share = options.cpus_per_worker or (
            min(1.0, free / workers) if fewest == options.num_workers else 1.0
        )
        gpus = options.gpus_per_worker if use_gpu else 0.0
        fits = sum(_fitting(node, share, gpus) for node in nodes) if share > 0 else 0
        if 0 < share * workers <= free + 1e-9 and fits >= workers:
            log.info("%d workers of %.2g CPU on a cluster of %g CPUs", workers, share, all_cpus)
            return workers, share
    raise NoCapacityError(
        f"scaling: {fewest} workers of {options.cpus_per_worker or 1:g} CPU"
        + (f" and {options.gpus_per_worker:g} GPU" if use_gpu else "")
        + f" do not fit {all_cpus:g} CPUs"
        + (f" and {sum(gpus for _, gpus in nodes):g} GPUs" if use_gpu else "")
        + f" on {len(nodes)} nodes"
        + (" with one CPU left for Ray Data" if feed == "stream" else "")
        + ". Lower scaling.num_workers or what each worker takes, or add nodes."
    )


def _nodes() -> list[tuple[float, float]]:
    """CPUs and GPUs of each node of the connected cluster."""
    import ray

    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [(node.get("CPU", 0.0), node.get("GPU", 0.0)) for node in alive]


def _fitting(node: tuple[float, float], cpus: float, gpus: float) -> int:
    """Number of workers, each with `cpus` CPUs and `gpus` GPUs, that fit on a node."""
    return min(int(have / each + 1e-9) for have, each in zip(node, (cpus, gpus), strict=True) if each)


def has_other_nodes() -> bool:
    """Whether the connected cluster has a node that is not this machine."""
    import ray

    return len({node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}) > 1


def others_see_this_disk(settings: Settings) -> bool:
    """Whether tasks on any node of the connected cluster may read and write files of this machine."""
    return settings.storage.url is None or not has_other_nodes()
