"""Program that trains on two workers with Ray's dashboard on, and prints what the dashboard lists under "Train".

A program, because a process can connect to only one Ray cluster, and the other tests share theirs.
"""

import sys
import urllib.request
from pathlib import Path

from slow_runs import slow_job

from training.ray_cluster.cluster import ray_cluster
from training.records import DatasetVersion
from training.storage.paths import Home
from training.supervision.launch import launch


def main(folder: Path, version: DatasetVersion, token: str) -> None:
    job = slow_job(Home(folder), version, workers=2, training={"epochs": 1}, ray={"dashboard": True})
    with ray_cluster(job.settings):
        import ray

        launch(job)
        address = ray.init(ignore_reinit_error=True).address_info["webui_url"]
        request = urllib.request.Request(
            f"http://{address}/api/train/v2/runs/v1",
            headers={"Authorization": f"Bearer {token}"},
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            print(answer.read().decode())


if __name__ == "__main__":
    version = DatasetVersion.model_validate_json(Path(sys.argv[2]).read_text())
    main(Path(sys.argv[1]), version, token=sys.argv[3])
