"""Program that drives a training without the run's lock; arguments: a home and a file with a dataset version."""

import sys
from pathlib import Path

from slow_runs import slow_job

from training.errors import EvergreenError
from training.records import DatasetVersion
from training.storage.paths import Home
from training.supervision.launch import launch

if __name__ == "__main__":
    home, version = sys.argv[1:]
    described = DatasetVersion.model_validate_json(Path(version).read_text())
    try:
        print(launch(slow_job(Home(Path(home)), described, workers=0)).weights_digest)
    except EvergreenError as error:
        print(f"{type(error).__name__}: {error}")
