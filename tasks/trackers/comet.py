"""Comet tracker: sends a run's points to Comet, or keeps them in archives in the run's folder `comet`.

The user's environment and Comet's configuration files decide: `COMET_API_KEY`, `COMET_URL_OVERRIDE`,
`COMET_PROJECT_NAME`, `COMET_WORKSPACE`, `COMET_START_ONLINE`. Without an API key, or with `COMET_START_ONLINE=0`, the
run is an offline experiment of Comet: each start of an interrupted run writes an archive, which `comet upload` uploads.
"""

import os
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.trackers.base import RunInfo, Status
from training.attempts.metrics import Point
from training.records import Record
from training.storage.record_files import find_or_set_aside, write_record

if TYPE_CHECKING:
    import comet_ml

_KEY_LENGTH = 48  # characters of the run key that are the experiment's key; Comet takes 32 to 50


class ArchivedSteps(Record):
    """The content of `archived.json`; `last` has for each metric the last step that an archive of the run has."""

    last: dict[str, int]


class Comet:
    """Logs a run's points with the points' own steps and times, under a key that is the beginning of the run key."""

    library = "comet_ml"

    def __init__(self) -> None:
        self._experiment: comet_ml.CometExperiment | None = None
        self._last: dict[str, int] = {}  # by metric: the last step that was logged
        self._archived = Path()  # file of these steps, for the next start of an offline experiment
        self._owner = ""  # of that file's record: the name of the run's folder

    def begin(self, run: RunInfo) -> str:
        """Open the experiment: online, or offline without an API key.

        Returns the URL of the experiment, or the command that uploads the archive of an offline experiment. Raises
        ConnectionError when Comet refuses the experiment.
        """
        folder = run.folder / "comet"
        self._archived, self._owner = folder / "archived.json", run.folder.name
        _prepare_process(folder / "unfinished")
        import comet_ml

        config = comet_ml.get_config()
        key = run.run_key[:_KEY_LENGTH]
        self._experiment = comet_ml.start(
            project_name=config["comet.project_name"] or run.recipe,
            experiment_key=key,
            mode="get_or_create",
            online=None if comet_ml.get_api_key(None, config) else False,
            experiment_config=comet_ml.ExperimentConfig(
                name=run.folder.name, offline_directory=str(folder), **_NOTHING_ELSE
            ),
        )
        if not self._experiment.alive:
            raise ConnectionError(
                f"Comet did not accept the experiment {key}; check COMET_API_KEY and COMET_WORKSPACE"
            )
        offline = isinstance(self._experiment, comet_ml.OfflineExperiment)
        self._last = self._archived_steps() if offline else _uploaded(comet_ml.API(), key)
        self._experiment.log_parameters(run.settings)
        self._experiment.log_others({"recipe": run.recipe, "run_key": run.run_key})
        if offline:
            return f"offline; `comet upload {shlex.quote(str(folder))}/*.zip` uploads it after the run"
        return str(self._experiment.url)

    def _archived_steps(self) -> dict[str, int]:
        """By metric: the last step in the archives of earlier starts; nothing if the file that says so is damaged."""
        known = find_or_set_aside(self._archived, ArchivedSteps, self._owner)
        return dict(known.last) if known is not None else {}

    def points(self, batch: Sequence[Point]) -> None:
        """Log the points that the experiment does not have yet."""
        from comet_ml.messages import MetricMessage

        assert self._experiment is not None
        for point in batch:
            for name, value in point.values.items():
                if point.step <= self._last.get(name, -1):
                    continue
                self._last[name] = point.step
                # log_metric has no parameter for the time, and points of an earlier start may be hours old.
                message = MetricMessage(timestamp=int(point.at * 1000))
                message.set_metric(name, value, step=point.step, epoch=point.epoch)
                self._experiment._enqueue_message(message)

    def end(self, status: Status) -> None:
        """Close the experiment: upload the remaining points, or write the archive of an offline experiment."""
        import comet_ml

        assert self._experiment is not None
        self._experiment.log_other("status", status)
        self._experiment.end()
        if isinstance(self._experiment, comet_ml.OfflineExperiment):
            write_record(self._archived, ArchivedSteps(last=self._last), self._owner)


# Settings of Comet: no console output, code, state of Git, description of this machine or its use.
_NOTHING_ELSE: dict[str, Any] = {
    "auto_log_co2": False,
    "auto_metric_logging": False,
    "auto_output_logging": False,
    "auto_param_logging": False,
    "display_summary_level": 0,
    "log_code": False,
    "log_env_details": False,
    "log_git_metadata": False,
    "log_git_patch": False,
    "log_graph": False,
    "parse_args": False,
}


def _prepare_process(temporary: Path) -> None:
    """Keep Comet's temporary files in the run's folder; disable its patches of libraries and its error reports.

    Removes the temporary files of a tracker's process that was killed: the points in them are sent again.
    """
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    tempfile.tempdir = str(temporary)
    os.environ["COMET_DISABLE_AUTO_LOGGING"] = "1"
    os.environ.setdefault("COMET_ERROR_TRACKING_ENABLE", "false")


def _uploaded(api: "comet_ml.API", key: str) -> dict[str, int]:
    """By metric: the last step that Comet has. Comet would show a point twice if the point were sent twice."""
    last: dict[str, int] = {}
    experiment = api.get_experiment_by_key(key)
    for point in (experiment.get_metrics() if experiment is not None else None) or ():
        if point["step"] is not None:
            name = point["metricName"]
            last[name] = max(int(point["step"]), last.get(name, -1))
    return last
