"""P3b: batches of shuffled, normalised images for a model that does nothing: the throughput of ingest alone."""

import time
from statistics import median
from typing import Any

from benchmarks.baselines.images import idx_folder, read
from benchmarks.baselines.trainings import version_of
from benchmarks.harness.row import Claim, Outcome, Row, Workspace

BATCH = 128


def prepare(workspace: Workspace) -> None:
    """Prepare the dataset version, and the idx files that it is made of."""
    version_of(workspace.data, _rows(workspace))


def evergreen(workspace: Workspace) -> Outcome:
    """A: the feed that training uses, and its normalisation on the device."""
    import torch

    from training.data.dataset import open_columns
    from training.data.images.augmentation import normaliser
    from training.data.sample_order import SampleOrder
    from training.trainers.network.feeds import MemoryFeed
    from training.trainers.ranks import Ranks

    torch.set_num_threads(1)
    version = version_of(workspace.data, _rows(workspace))
    columns = open_columns(version, "train")
    every = torch.arange(len(columns)).numpy()
    ranks = Ranks.of_this_process(use_gpu=False)
    feed = MemoryFeed(columns, every, SampleOrder(len(columns), BATCH, seed=0), ranks)
    normalise = normaliser((0.5,), (0.5,))

    def epoch(number: int) -> Any:
        for batch in feed.batches(number, 0):
            yield normalise(batch.inputs), batch.targets

    return _timed(epoch, _epochs(workspace))


def data_loader(workspace: Workspace) -> Outcome:
    """B: a `DataLoader` as a good engineer writes it for rows in memory, in this process."""
    return _data_loader(workspace, processes=0)


def data_loader_in_processes(workspace: Workspace) -> Outcome:
    """B: the same `DataLoader` with two worker processes, which send bytes; this process normalises them."""
    return _data_loader(workspace, processes=2)


def _data_loader(workspace: Workspace, processes: int) -> Outcome:
    """The sampler gives the rows of a whole batch, so that no Python code runs per row: neither there nor here."""
    import numpy as np
    import torch
    from torch.utils.data import DataLoader, Dataset, Sampler

    torch.set_num_threads(1)
    train_split = read(idx_folder(workspace.data, _rows(workspace)), "train")
    pixels = torch.from_numpy(np.array(train_split.pixels))[:, None]
    labels = torch.from_numpy(np.array(train_split.labels, np.int64))

    class Pictures(Dataset[Any]):
        def __len__(self) -> int:
            return len(labels)

        def __getitem__(self, rows: Any) -> tuple[Any, Any]:
            chosen = torch.as_tensor(rows)
            return pixels.index_select(0, chosen), labels.index_select(0, chosen)

    class Batches(Sampler[Any]):
        def __iter__(self) -> Any:
            batches = torch.split(torch.randperm(len(labels)), BATCH)
            # To another process, a tensor goes through shared memory, a small array through a pipe, which is faster.
            return (rows.numpy() if processes else rows for rows in batches)

    loader = DataLoader(
        Pictures(),
        batch_size=None,
        sampler=Batches(),
        num_workers=processes,
        persistent_workers=processes > 0,
        collate_fn=lambda batch: batch,
    )

    def epoch(_: int) -> Any:
        for images, numbers in loader:
            yield images.float().div_(127.5).sub_(1.0), numbers

    return _timed(epoch, _epochs(workspace))


def guides_loader(workspace: Workspace) -> Outcome:
    """B: the guides' `DataLoader`: per row a PIL image, `ToTensor` and `Normalize`; two worker processes."""
    import numpy as np
    import torch
    from PIL import Image
    from torch.utils.data import DataLoader, Dataset
    from torchvision.transforms import Compose, Normalize, ToTensor

    torch.set_num_threads(1)
    train_split = read(idx_folder(workspace.data, _rows(workspace)), "train")
    pixels, labels = np.array(train_split.pixels), train_split.labels.tolist()
    transform = Compose([ToTensor(), Normalize((0.5,), (0.5,))])

    class Pictures(Dataset[Any]):
        def __len__(self) -> int:
            return len(labels)

        def __getitem__(self, row: int) -> tuple[Any, int]:
            return transform(Image.fromarray(pixels[row], mode=None)), labels[row]

    loader = DataLoader(Pictures(), BATCH, shuffle=True, num_workers=2, persistent_workers=True)
    return _timed(lambda _: loader, epochs=2)


def gather(workspace: Workspace) -> Outcome:
    """B: NumPy gathers the rows of a permutation and converts bytes to floating-point numbers."""
    import numpy as np
    import torch

    torch.set_num_threads(1)
    train_split = read(idx_folder(workspace.data, _rows(workspace)), "train")
    pixels, labels = np.array(train_split.pixels)[:, None], np.array(train_split.labels, np.int64)

    def epoch(number: int) -> Any:
        order = np.random.default_rng(number).permutation(len(labels))
        for start in range(0, len(order), BATCH):
            rows = order[start : start + BATCH]
            images = pixels[rows].astype(np.float32)
            images /= 127.5
            images -= 1.0
            yield torch.from_numpy(images), torch.from_numpy(labels[rows])

    return _timed(epoch, _epochs(workspace))


def _rows(workspace: Workspace) -> int:
    return workspace.pick(60_000, 20_000, 1_000)


def _epochs(workspace: Workspace) -> int:
    """Number of epochs; an epoch takes 40 ms, which other load on the machine can double."""
    return workspace.pick(41, 11, 3)


def _timed(epoch: Any, epochs: int) -> Outcome:
    """Rows per second in the median epoch after the first, and sums that show that the sides did the same work."""
    rows, total, labels = 0, 0.0, 0
    for images, numbers in epoch(0):
        rows, total, labels = (
            rows + len(images),
            total + float(images.double().sum()),
            labels + int(numbers.sum()),
        )
    speeds = []
    for number in range(1, epochs):
        began, seen = time.perf_counter(), 0
        for images, _ in epoch(number):
            seen += len(images)
        speeds.append(seen / (time.perf_counter() - began))
    return Outcome(
        {"rows_per_s": median(speeds)},
        {
            "rows": rows,
            "labels": labels,
            "shape": list(images.shape[1:]),
            "dtype": str(images.dtype),
            "sum": total,
        },
    )


ROW = Row(
    id="P3b",
    sides={
        "a": evergreen,
        "loader": data_loader,
        "processes": data_loader_in_processes,
        "guides": guides_loader,
        "gather": gather,
    },
    claims=(
        Claim(
            "P3b-loader",
            "ingest alone / DataLoader whose sampler gives whole batches, in one process",
            of="rows_per_s",
            unit="rows/s",
            goal=1.0,
            at_least=True,
            b="loader",
        ),
        Claim(
            "P3b-processes",
            "ingest alone / DataLoader whose sampler gives whole batches, and 2 worker processes",
            of="rows_per_s",
            unit="rows/s",
            goal=1.0,
            at_least=True,
            b="processes",
        ),
        Claim(
            "P3b-guides",
            "ingest alone / the guides' DataLoader, one PIL image per row",
            of="rows_per_s",
            unit="rows/s",
            goal=8.0,
            at_least=True,
            b="guides",
        ),
        Claim(
            "P3b-gather",
            "ingest alone / NumPy gather and uint8 to float32",
            of="rows_per_s",
            unit="rows/s",
            goal=0.8,
            at_least=True,
            b="gather",
        ),
    ),
    prepare=prepare,
    same=("rows", "labels", "shape", "dtype"),
    close={"sum": 1e-4},
    others=("loader", "processes", "guides", "gather"),
    warm_up=False,
    quick=True,
)
