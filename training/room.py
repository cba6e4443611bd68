"""Room for a run's workers, on this machine or the cluster: asked before anything waits for it."""

import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from training.errors import SettingError
from training.overrides import merged, validated
from training.settings import RaySettings, ScalingSettings, Settings

log = logging.getLogger("evergreen.room")


class NoRoomError(SettingError):
    """The workers do not fit the cluster as it is."""


def available_cpus() -> int:
    """CPUs that this process may use, which a container or taskset can make fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def resolve_here(base: Settings, *overrides: Mapping[str, Any]) -> Settings:
    """:func:`training.overrides.resolve` for a run that starts on this machine.

    More workers than CPUs are refused first: the rule for batch sizes would only repeat their number. Raises
    :class:`SettingError`.
    """
    values = merged(base, *overrides)
    with suppress(ValidationError):  # which `validated` explains
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


def room_for_workers(settings: Settings, feed: str) -> tuple[int, float]:
    """How many workers to start on the cluster as it is now, and the CPUs to reserve for each.

    With feed `stream`, one CPU at least is left to Ray Data: it gets only what the workers leave, and without any
    it waits for ever without an error. Raises :class:`NoRoomError` when not even `scaling.min_workers` fit.
    """
    import ray

    nodes = [node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]]
    free = sum(nodes) - (1 if feed == "stream" else 0)
    options = settings.scaling
    fewest = options.min_workers or options.num_workers
    for workers in range(options.num_workers, fewest - 1, -1):
        share = options.cpus_per_worker or (
            min(1.0, free / workers) if fewest == options.num_workers else 1.0
        )
        fits = sum(int(cpus / share + 1e-9) for cpus in nodes) if share > 0 else 0
        if 0 < share * workers <= free + 1e-9 and fits >= workers:
            log.info("%d workers of %.2g CPU on a cluster of %g CPUs", workers, share, sum(nodes))
            return workers, share
    raise NoRoomError(
        f"scaling: {fewest} workers of {options.cpus_per_worker or 1:g} CPU do not fit {sum(nodes):g} CPUs on "
        f"{len(nodes)} nodes"
        + (" with one CPU left for Ray Data" if feed == "stream" else "")
        + ". Lower scaling.num_workers or scaling.cpus_per_worker, or add nodes."
    )


def has_other_nodes() -> bool:
    """Whether the connected cluster has a node that is not this machine."""
    import ray

    return len({node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}) > 1
