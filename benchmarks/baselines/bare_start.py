"""The shortest DDP program (P7): a model of one layer, one step, and the time after that step.

torchrun --nproc-per-node 2 -m benchmarks.baselines.bare_start RAW OUT.json
"""

import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.baselines.images import read

BATCH = 64


def main() -> None:
    """Entry point under torchrun."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    pixels, labels = read(Path(sys.argv[1]), "train")
    mine = slice(dist.get_rank() * BATCH, (dist.get_rank() + 1) * BATCH)
    images = torch.from_numpy(np.array(pixels[mine]))[:, None].float() / 255
    truth = torch.from_numpy(np.array(labels[mine], np.int64))
    model = DistributedDataParallel(nn.Sequential(nn.Flatten(), nn.Linear(784, 10)))
    optimizer = torch.optim.AdamW(model.parameters())
    loss = functional.cross_entropy(model(images), truth)
    torch.autograd.backward(loss)
    optimizer.step()
    at, rows = time.time(), torch.tensor(len(images))
    dist.all_reduce(rows)
    if dist.get_rank() == 0:
        done = {"at": at, "loss": float(loss.detach()), "processes": dist.get_world_size(), "rows": int(rows)}
        Path(sys.argv[2]).write_text(json.dumps(done))
    dist.barrier()  # a rank that exits during the other rank's all-reduce aborts that rank
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
