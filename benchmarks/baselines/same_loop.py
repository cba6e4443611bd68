"""Evergreen's training loop under `torchrun` instead of Ray Train (P1a): the same function, another launcher.

torchrun --nproc-per-node 2 -m benchmarks.baselines.same_loop JOB.json
"""

import os
import sys
from pathlib import Path
from typing import Any

from benchmarks.baselines.torchrun import run
from training.attempts.fence import Fence
from training.attempts.job import TrainingJob
from training.recipe_copy import keep_copy
from training.records import TrainedModel
from training.supervision.launch import finished


def launch_by_torchrun(job: TrainingJob) -> TrainedModel:
    """Like `training.supervision.launch`, but without Ray and without retries."""
    keep_copy(job.recipe, job.paths.recipe)
    job.paths.checkpoints.mkdir(parents=True)
    numbered = job.model_copy(update={"attempt": Fence.begin(job.paths).number})
    file = job.paths.root / "job.json"
    file.write_text(numbered.model_dump_json())
    run("benchmarks.baselines.same_loop", [str(file)], job.settings.scaling.num_workers)
    trained = finished(job.paths, job.run_key)
    assert trained is not None
    return trained


def main() -> None:
    """Entry point of a process under torchrun."""
    import ray.train.torch
    import torch
    import torch.distributed as dist

    from training.trainers.ranks import Ranks
    from training.trainers.torch.worker import run_worker

    job = TrainingJob.model_validate_json(Path(sys.argv[1]).read_text())
    torch.set_num_threads(job.settings.scaling.threads_per_worker)
    dist.init_process_group("gloo")
    # Ray's prepare_model refuses to work outside of a Ray Train worker.
    ray.train.torch.prepare_model = _distributed  # type: ignore[assignment]
    ranks = Ranks(
        int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), torch.device("cpu"), distributed=True
    )
    run_worker(job, ranks)
    dist.destroy_process_group()


def _distributed(module: Any, parallel_strategy_kwargs: dict[str, Any]) -> Any:
    from torch.nn.parallel import DistributedDataParallel

    return DistributedDataParallel(module, **parallel_strategy_kwargs)


if __name__ == "__main__":
    main()
