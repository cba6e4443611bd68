"""What all trials share: a copy of the code, the prepared data, the servers and the undisturbed reference runs."""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import tasks
from benchmarks.chaos import processes, services
from benchmarks.chaos.retraining import Retraining
from benchmarks.chaos.workloads import WORKLOADS, Workload
from benchmarks.harness.results import stamp
from training.storage.paths import HOME_VARIABLE, Home, RunPaths

MARK = "EVERGREEN_CHAOS"  # set in the environment of every process that is started here
_REFERENCE_TIMEOUT_S = 600.0
_PACKAGES = ("evergreen", "flows", "tasks", "training")


class Kind(NamedTuple):
    """How a trial computes: workers (0: in the command's own process), virtual shards or None, name of the workload."""

    workers: int = 2
    virtual_shards: int | None = None
    trainer: str = "torch"

    @property
    def workload(self) -> Workload:
        """What a trial of this kind trains."""
        return WORKLOADS[self.trainer]

    @property
    def settings(self) -> dict[str, str]:
        """The settings of a trial of this kind, as arguments of `--set`."""
        shards = {"training.virtual_shards": str(self.virtual_shards)} if self.virtual_shards else {}
        return {**self.workload.settings, "scaling.num_workers": str(self.workers)} | shards


class Reference(NamedTuple):
    """An undisturbed run: its folder, and the seconds from the command's start to the release record."""

    paths: RunPaths
    seconds: float


@dataclass
class Bench:
    """All files lie under `folder`, whose path must be short because Ray's Unix sockets lie there too."""

    folder: Path
    environment: dict[str, str]
    stack: ExitStack
    code: str
    _references: dict[Kind, Reference] = field(default_factory=dict)
    _ray: services.RayNode | None = None
    _prefect: services.Server | None = None

    def recipe(self, kind: Kind) -> Path:
        """Path of the recipe that trials of `kind` train."""
        return self.folder / f"{kind.workload.recipe}.py"

    def template(self, kind: Kind) -> Path:
        """A home that contains only the prepared data."""
        return self.folder / f"template-{kind.trainer}"

    @property
    def prefect_url(self) -> str:
        """Address of the shared Prefect server, which the first access starts."""
        if self._prefect is None:
            server = services.prefect_server(self.folder / "prefect", self.environment)
            self._prefect = self.stack.enter_context(services.running(server))
        return f"http://127.0.0.1:{self._prefect.port}/api"

    @property
    def ray(self) -> services.RayNode:
        """The shared Ray head, which the first access starts."""
        if self._ray is None:
            head = services.ray_head(self.folder / "r", self.environment)
            self._ray = self.stack.enter_context(head)
        return self._ray

    def reference(self, kind: Kind) -> Reference:
        """The undisturbed run of `kind`, which the first call makes."""
        if kind not in self._references:
            self._references[kind] = self._undisturbed(kind)
        return self._references[kind]

    def _undisturbed(self, kind: Kind) -> Reference:
        home = Home(self.folder / f"reference-{kind.trainer}-{kind.workers}-{kind.virtual_shards}")
        if self.template(kind).exists():
            shutil.copytree(self.template(kind), home.root)
        environment = self.environment | {HOME_VARIABLE: str(home.root), "PREFECT_API_URL": self.prefect_url}
        settings = kind.settings
        if kind.workers:
            environment |= self.ray.environment
            settings |= {"ray.address": self.ray.address}
        log = self.folder / f"{home.root.name}.log"
        run = Retraining(self.recipe(kind), settings, environment, log, self.folder)
        if status := run.wait(_REFERENCE_TIMEOUT_S):
            raise RuntimeError(
                f"the undisturbed run ended with status {status}; see {log}:\n{log.read_text()[-3000:]}"
            )
        (folder,) = home.runs(kind.workload.recipe).iterdir()
        paths = RunPaths(folder)
        self._keep_template(home, self.template(kind))
        return Reference(paths, paths.release.stat().st_mtime - run.began)

    def _keep_template(self, home: Home, template: Path) -> None:
        """Copy the data only: MLflow's store holds absolute paths, so a copy of it would not work."""
        if template.exists():
            return
        aside = template.with_suffix(".tmp")
        aside.mkdir()
        for part in (home.datasets, home.sources, home.raw):
            if part.exists():
                shutil.copytree(part, aside / part.name)
        aside.rename(template)


@contextmanager
def bench(folder: Path) -> Iterator[Bench]:
    """Set up under `folder`; at the end, kill every process that was started here."""
    code = folder / "code"
    root = Path(tasks.__file__).parents[1]
    for package in _PACKAGES:
        shutil.copytree(root / package, code / package, ignore=shutil.ignore_patterns("__pycache__"))
    environment = services.clean_environment() | {
        "PYTHONPATH": str(code),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_HOME": str(folder / "prefect-client"),
        "PREFECT_LOGGING_TO_API_ENABLED": "false",
        "RAY_TMPDIR": str(folder / "o"),
        "RAY_USAGE_STATS_ENABLED": "0",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "1",
        MARK: str(folder),
    }
    (folder / "o").mkdir()
    with ExitStack() as stack:
        stack.callback(lambda: processes.end_all(processes.with_environment(MARK, str(folder))))
        made = Bench(folder, environment, stack, stamp())
        for workload in WORKLOADS.values():
            workload.write(folder)
        yield made
