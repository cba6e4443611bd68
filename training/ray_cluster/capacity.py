"""Capacity for a run's workers on this machine or the cluster, checked before anything waits for resources."""

import logging
import math
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
    # Settings of older runs may have an empty address, and must stay readable.
    if values["ray"].get("address") == "":
        raise SettingError(
            "ray.address: the text is empty, perhaps from a variable that is not set; leave the setting out for a Ray "
            "on this machine"
        )
    with suppress(ValidationError):  # `validated` explains invalid values
        scaling = ScalingSettings.model_validate(values["scaling"])
        ray = RaySettings.model_validate(values["ray"])
        _check_workers_fit(scaling, ray)
        if values["data"].get("feed") == "stream":
            _check_cpu_for_stream(scaling, ray)
    return validated(values)


def _check_workers_fit(scaling: ScalingSettings, ray: RaySettings) -> None:
    """Refuse more workers than this machine has CPUs, before a cluster is started."""
    if ray.address:
        return
    cpus = ray.num_cpus or available_cpus()
    share = scaling.cpus_per_worker or 1
    if scaling.num_workers > cpus or scaling.num_workers * share > cpus:
        each = f"{share:g} CPUs" if share > 1 else "at least one CPU"
        there = f"ray.num_cpus is {cpus}" if ray.num_cpus else f"this machine has {cpus}"
        raise SettingError(
            f"scaling.num_workers: {scaling.num_workers} workers need {each} each, and {there}. Use at most "
            f"{int(cpus / max(1.0, share))}, or a cluster (ray.address); to let workers share CPUs, raise ray.num_cpus."
        )


def _check_cpu_for_stream(scaling: ScalingSettings, ray: RaySettings) -> None:
    """Refuse workers that leave no whole CPU of this machine to Ray Data, which would wait without an error."""
    if ray.address or not scaling.num_workers:  # without workers, `validated` refuses the feed
        return
    cpus, share = ray.num_cpus or available_cpus(), scaling.cpus_per_worker
    if cpus >= 2 and (share is None or scaling.num_workers * share <= cpus - 1 + 1e-9):
        return
    raise SettingError(
        f"data.feed: stream needs a whole CPU for Ray Data beside the workers, and {scaling.num_workers} workers"
        + (f" of {share:g} CPU" if share is not None else "")
        + f" leave none of this machine's {cpus}. Use data.feed=memory"
        + (", or a lower scaling.num_workers or scaling.cpus_per_worker" if cpus >= 2 else "")
        + ", or a cluster (ray.address)."
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


def check_fits_a_node(cpus: float, gpus: float) -> None:
    """Raise :class:`NoCapacityError` if no node of the connected cluster has `cpus` CPUs and `gpus` GPUs."""
    nodes = _nodes()
    if any(_fitting(node, cpus, gpus) for node in nodes):
        return
    largest = max((have for have, _ in nodes), default=0.0)
    raise NoCapacityError(
        f"scaling: a trial takes {cpus:g} CPU"
        + (f" and {gpus:g} GPU" if gpus else "")
        + f", and no node has as much: the largest has {largest:g} CPUs. Lower scaling.cpus_per_worker or "
        "scaling.gpus_per_worker, or add nodes."
    )


def capacity_for_workers(settings: Settings, feed: str, use_gpu: bool = False) -> tuple[int, float]:
    """Number of workers to start on the present nodes of the cluster, and the CPUs to reserve for each worker.

    With feed `stream`, a whole CPU of a node stays free for Ray Data, whose tasks take one each: with none, Ray Data
    waits forever without an error. Raises :class:`NoCapacityError` when not even `scaling.min_workers` workers fit.
    """
    nodes, options = _nodes(), settings.scaling
    all_cpus = sum(cpus for cpus, _ in nodes)
    fewest = options.min_workers or options.num_workers
    gpus = options.gpus_per_worker if use_gpu else 0.0
    for workers in range(options.num_workers, fewest - 1, -1):
        for share in _shares(options, [cpus for cpus, _ in nodes], workers, feed):
            fits = sum(_fitting(node, share, gpus) for node in nodes) >= workers
            if fits and (feed != "stream" or leaves_a_cpu(nodes, workers, share, gpus, options)):
                log.info("%d workers of %.2g CPU on a cluster of %g CPUs", workers, share, all_cpus)
                return workers, share
    raise NoCapacityError(
        f"scaling: {fewest} workers of {options.cpus_per_worker or 1:g} CPU"
        + (f" and {options.gpus_per_worker:g} GPU" if use_gpu else "")
        + f" do not fit {all_cpus:g} CPUs"
        + (f" and {sum(gpus for _, gpus in nodes):g} GPUs" if use_gpu else "")
        + f" on {len(nodes)} nodes"
        + (" with a whole CPU of one node left for Ray Data (data.feed=stream)" if feed == "stream" else "")
        + ". Lower scaling.num_workers or what each worker takes, or add nodes."
    )


def _shares(options: ScalingSettings, cpus: list[float], workers: int, feed: str) -> list[float]:
    """The CPUs that each of `workers` workers may take on nodes with `cpus` CPUs, the largest number first."""
    if options.cpus_per_worker is not None:
        return [options.cpus_per_worker]
    if options.min_workers not in (None, options.num_workers):
        return [1.0]
    shares = {1.0, sum(cpus) / workers}
    if feed == "stream":
        # Ray counts in units of 1/10,000 CPU: shares rounded up would together take some of the CPU to leave free.
        one_less = {(node - 1) / count for node in cpus for count in range(1, workers + 1)}
        shares = {1.0} | {math.floor(share * 1e4) / 1e4 for share in one_less}
    return sorted((share for share in shares if 0 < share <= 1), reverse=True)


def leaves_a_cpu(
    nodes: list[tuple[float, float]], workers: int, share: float, gpus: float, options: ScalingSettings
) -> bool:
    """Whether a node keeps a whole CPU, wherever Ray places `workers` workers of `share` CPUs and `gpus` GPUs."""
    if options.placement_strategy in ("PACK", "STRICT_PACK"):  # on one node, if all workers fit
        rooms = [node for node in nodes if _fitting(node, share, gpus) >= workers]
        others = sum(cpus >= 1 for cpus, _ in nodes)
        if rooms:
            return all(cpus - workers * share > 1 - 1e-6 or others > (cpus >= 1) for cpus, _ in rooms)
    fewest = 0  # number of workers that leave no whole CPU on any node
    for node in nodes:
        number = max(0, math.floor((node[0] - 1) / share + 1e-9) + 1)
        if number > _fitting(node, share, gpus):
            return True
        fewest += number
    return fewest > workers


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
