"""The entries of a run in MLflow: the MLflow run, its metric points, its model versions, and the model's aliases."""

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tasks.registry.aliases import CHALLENGER, CHAMPION, PREVIOUS, champion_of
from tasks.trackers.embedded_store import store_file
from tasks.trackers.mlflow_run import HOME_TAG, RUN_KEY_TAG, connect, is_of_another_home
from tasks.trackers.paged_search import all_pages
from tasks.trackers.provenance import FLOW_RUN_TAG
from tasks.verify.finding import NoEvidence
from training.errors import EvergreenError
from training.plan import RunPlan
from training.records import Release
from training.storage.paths import Home

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Run
    from mlflow.entities.model_registry import ModelVersion


@dataclass(frozen=True)
class Store:
    """One run's entries in an MLflow store.

    `shared`: other homes may write to the store, too. `released`: the MLflow run that release.json names.
    """

    client: "MlflowClient"
    plan: RunPlan
    home: Home
    shared: bool
    released: str | None

    @cached_property
    def runs(self) -> "list[Run]":
        """All MLflow runs of this home with the run key."""
        return self._search(f"tags.`{RUN_KEY_TAG}` = '{self.plan.run_key}' and {self._ours}")

    @property
    def run(self) -> "Run":
        """The MLflow run that release.json names, else the newest MLflow run with the run key."""
        if not self.runs:
            raise NoEvidence("MLflow has no run with this run key", ok=False)
        return next((run for run in self.runs if run.info.run_id == self.released), self.runs[0])

    @property
    def runs_of_experiment(self) -> "list[Run]":
        """The runs of :attr:`runs` that are in the experiment of :attr:`run`; empty when MLflow has no such run."""
        experiments = {self.run.info.experiment_id} if self.runs else set()
        return [run for run in self.runs if run.info.experiment_id in experiments]

    @cached_property
    def running(self) -> "list[Run]":
        """MLflow runs of the home with the status RUNNING."""
        return self._search(f"attributes.status = 'RUNNING' and {self._ours}")

    def has_flow_run(self, flow_run: str) -> bool:
        """Whether an MLflow run of the home was written by the Prefect flow run with this id."""
        return bool(self._search(f"tags.`{FLOW_RUN_TAG}` = '{flow_run}' and {self._ours}"))

    @cached_property
    def versions(self) -> "list[ModelVersion]":
        """Versions of the registered model that carry the run key, of any home, oldest first."""
        wanted = f"name = '{self.plan.model}' and tags.`{RUN_KEY_TAG}` = '{self.plan.run_key}'"
        return sorted(
            all_pages(self.client.search_model_versions, wanted), key=lambda version: int(version.version)
        )

    def is_ours(self, version: "ModelVersion") -> bool:
        """Whether this home made the version. A version whose MLflow run names no home counts as this home's."""
        return not is_of_another_home(self.client, self.home, version.run_id)

    @cached_property
    def aliases(self) -> dict[str, str | None]:
        """Version number by alias; None for an alias that points to no version."""
        return {
            alias: champion_of(self.client, self.plan.model, alias)
            for alias in (CHAMPION, CHALLENGER, PREVIOUS)
        }

    @cached_property
    def history(self) -> "dict[str, list[Metric]]":
        """Every point of every metric, except the system metrics of the machine."""
        names = [name for name in self.run.data.metrics if not name.startswith("system/")]
        return {name: self.client.get_metric_history(self.run.info.run_id, name) for name in names}

    def artifact(self, name: str) -> dict[str, Any]:
        """The content of a JSON artifact of the MLflow run."""
        import mlflow.artifacts

        try:
            content: dict[str, Any] = mlflow.artifacts.load_dict(
                f"{self.run.info.artifact_uri.rstrip('/')}/{name}"
            )
            return content
        except Exception as error:  # each kind of artifact store raises its own error types
            reason = f"{name} can't be read from MLflow ({type(error).__name__}: {error})"
            raise NoEvidence(reason, ok=False) from error

    @property
    def _ours(self) -> str:
        return f"tags.`{HOME_TAG}` = '{self.home.identity}'"

    def _search(self, wanted: str) -> "list[Run]":
        experiment_ids = [
            experiment.experiment_id for experiment in all_pages(self.client.search_experiments)
        ]
        return all_pages(self.client.search_runs, experiment_ids, wanted)


def open_store(plan: RunPlan, home: Home, release: Release | None) -> Store:
    """Connect to the store that the run wrote to.

    Raises :class:`NoEvidence` when there is no store; for a finished run, that breaks the invariant.
    """
    uri = plan.settings.tracking.uri
    if uri is None and not store_file(home).is_file():  # connecting would create the file
        raise NoEvidence(f"there is no MLflow store {store_file(home)}", ok=False if release else None)
    released = release.mlflow_run_id if release else None
    try:
        return Store(connect(uri, home), plan, home, uri is not None, released)
    except EvergreenError as error:
        raise NoEvidence(str(error)) from error
