"""Program that prepares a folder of idx files, trains on it for 100 steps and prints rows and steps as JSON.

A program, so that a test can limit the memory of its process.
"""

import json
import sys
from pathlib import Path

from small_runs import job_for, prepared_from, tiny_settings, write_recipe

from training.data.sources.digits import Digits
from training.data.sources.locate import open_path
from training.settings.schema import DataSettings
from training.storage.paths import Home
from training.supervision.launch import launch


def main() -> None:
    home, raw = Home(Path(sys.argv[1])), Path(sys.argv[2])
    files = open_path(raw, home.sources, (), Digits()).fetch(home.sources / "large")
    version = prepared_from(home, files, "large", DataSettings(path=str(raw)))
    settings = tiny_settings(
        training={"epochs": 1, "max_steps": 100, "global_batch_size": 256},
        data={"path": str(raw), "validation_share": 0.01},
    )
    trained = launch(job_for(home, version, settings, write_recipe(home.root)))
    print(json.dumps({"rows": version.rows("train"), "steps": trained.history[-1].step}))


if __name__ == "__main__":
    main()
