"""Several trainings in one process, on a Ray cluster that the first training starts (P7).

    python -m benchmarks.baselines.start JOB.json ... OUT.json

OUT.json gets the time of each call.
"""

import json
import sys
import time
from pathlib import Path


def main() -> None:
    """Entry point of the process."""
    from training.attempts.job import TrainingJob
    from training.ray_cluster.cluster import ray_cluster
    from training.supervision.launch import launch

    *files, out = map(Path, sys.argv[1:])
    jobs = [TrainingJob.model_validate_json(file.read_text()) for file in files]
    calls = []
    with ray_cluster(jobs[0].settings):
        for job in jobs:
            calls.append(time.time())
            launch(job)
    out.write_text(json.dumps(calls))


if __name__ == "__main__":
    main()
