"""Links to a finished run: MLflow's pages of the run and of the version, and the report page."""

import shlex
from pathlib import Path
from urllib.parse import quote, urlsplit

from training.records import Release
from training.redaction import redact

_LOCAL = "http://127.0.0.1:5000"  # the default address of `evergreen ui`
# Opens MLflow's menus for trained models; without this, a browser's first visit opens those for language models.
MENU = "?workflowType=machine_learning"


def where_to_look(release: Release, experiment_id: str, uri: str | None, home: Path) -> tuple[str, str]:
    """Markdown links to run, version and page, and the command that serves these pages (empty for a server).

    `uri` is `tracking.uri`. An MLflow server serves its own pages; `evergreen ui` serves those of the home's store,
    and `mlflow ui` those of another store.
    """
    command, base = "", (uri or "").rstrip("/")
    if not base.startswith(("http://", "https://")):
        served = f"EVERGREEN_HOME={shlex.quote(str(home))} evergreen ui"
        command = f"mlflow ui --backend-store-uri {shlex.quote(redact(base))}" if base else served
        base = _LOCAL
    parts = urlsplit(base)
    base = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()  # without credentials
    run = f"{base}/#/experiments/{quote(experiment_id)}/runs/{quote(release.mlflow_run_id)}"
    version = f"{base}/#/models/{quote(release.model, safe='')}/versions/{quote(release.version)}"
    links = {
        "MLflow run": f"{run}{MENU}",
        "model version": f"{version}{MENU}",
        "report page": f"{run}/artifacts/report.html{MENU}",
    }
    return " · ".join(f"[{name}]({address})" for name, address in links.items()), command
