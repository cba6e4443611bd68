"""The fault matrix: the faults that can be injected, and those that cannot, each with the reason."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from benchmarks.chaos.bench import Kind
from benchmarks.chaos.trial import Trial
from benchmarks.chaos.workloads import WORKLOADS

ON_RAY, IN_PROCESS, IN_SHARDS = Kind(2), Kind(0), Kind(2, 4)


@dataclass(frozen=True)
class Fault:
    """One line of the matrix. `inject` starts the command and causes the fault; all else is the same for every fault.

    Trials with a trainer take the kinds of :meth:`kinds_of` in turn. With `own_services`, a trial has its own Ray and
    Prefect server.
    """

    id: str
    what: str
    inject: Callable[[Trial], None]
    kinds: tuple[Kind, ...] = (ON_RAY,)
    own_services: bool = False
    unavailable: Callable[[], str | None] = lambda: None  # reason why it can't be injected here
    not_with: Mapping[str, str] = field(default_factory=dict)  # trainers without it, each with the reason

    def kinds_of(self, trainer: str) -> tuple[Kind, ...]:
        """Kinds of the trials with a workload; none for one in `not_with`, virtual shards only where it has them."""
        if trainer in self.not_with:
            return ()
        shards = WORKLOADS[trainer].has_virtual_shards
        kinds = [kind for kind in self.kinds if kind.virtual_shards is None or shards]
        return tuple(kind._replace(trainer=trainer) for kind in kinds)


def all_faults() -> tuple[Fault, ...]:
    """All faults in the order of the matrix; the random ones come last."""
    from benchmarks.chaos.faults import kills, machine, network, servers, storage, syscalls

    modules = (kills, servers, syscalls, storage, network, machine)
    faults = [fault for module in modules for fault in module.FAULTS]
    return tuple(
        sorted(faults, key=lambda fault: (fault.id == "random", int(fault.id.strip("Frandom") or 0)))
    )


# Faults of the matrix that no program here injects, on any machine.
NOT_INJECTED = {
    "F15": "Downloads that are truncated, wrong, missing, slow or redirected need no training to be shown: real HTTP "
    "servers do so in tests/training/data/sources/test_source_download.py.",
    "F16": "An object store that is away, slow or damaged, or loses answers: the trials set no `storage.url`. Tests "
    "show it, the slow store with a local S3 server: tests/training/supervision/test_storage_url.py, "
    "tests/training/checkpoints/test_stored_run.py.",
    "F22, another torch": "One environment has one torch. The version is an ingredient of the run key, so that "
    "another one makes another run, which tests/training/test_identity.py shows.",
    "power": "Loss of power, which takes what the disk had only promised: a process that dies leaves the page cache "
    "in place. F10 and F11 show the order of the writes instead.",
}
