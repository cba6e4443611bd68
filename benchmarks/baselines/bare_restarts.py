"""Training that recovers from killed ranks by `torchrun --max-restarts`, as torch's documentation describes it (P10).

    torchrun --max-restarts=N --nproc-per-node 2 -m benchmarks.baselines.bare_restarts FOLDER

Rank 0 saves a snapshot every 20 steps, and every start loads it. Each step takes at least 25 ms. Steps and process
ids are written to FOLDER for the program that kills the ranks.
"""

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch import nn
from torch.nn.parallel import DistributedDataParallel

EVERY_STEPS = 20
# A rank waits no longer for a killed rank, so that a restart fits into the time limit for a recovery.
_TIMEOUT_S = 30


def main() -> None:
    """Entry point under torchrun."""
    folder, rank = Path(sys.argv[1]), int(os.environ["RANK"])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=_TIMEOUT_S))
    (folder / f"rank-{rank}.pid").write_text(str(os.getpid()))
    module = nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
    optimizer = torch.optim.AdamW(module.parameters())
    snapshot, step = folder / "snapshot.pt", 0
    if snapshot.exists():
        state = torch.load(snapshot, weights_only=True)
        module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    model = DistributedDataParallel(module)
    while not (folder / "stop").exists() or step % EVERY_STEPS:
        images, labels = torch.rand((24, 1, 28, 28)), torch.arange(24) % 10
        time.sleep(0.025)
        loss = functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        step += 1
        if rank:
            continue
        with (folder / "steps.jsonl").open("a") as out:
            out.write(json.dumps({"step": step, "at": time.time(), "pid": os.getpid()}) + "\n")
        if step % EVERY_STEPS == 0:
            aside = snapshot.with_suffix(".tmp")
            state = {"model": module.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, aside)
            aside.replace(snapshot)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
