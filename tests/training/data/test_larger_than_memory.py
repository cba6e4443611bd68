"""Data larger than a process's memory limit can be prepared and trained on."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

_HERE = Path(__file__).parents[1]
_GROUPS = Path("/sys/fs/cgroup/memory")
_LIMIT = 700 * 2**20
_BLOCK, _BLOCKS = 50_000, 30  # 1.2 GB of images


@pytest.fixture
def group() -> Iterator[Path]:
    """A memory cgroup, in which page cache counts as well, as in a container."""
    made = _GROUPS / f"evergreen-test-{os.getpid()}"
    try:
        made.mkdir()
    except OSError as error:
        pytest.skip(f"needs a memory cgroup (v1) that it may make: {error}")
    (made / "memory.limit_in_bytes").write_text(str(_LIMIT))
    yield made
    for _ in range(50):
        with suppress(OSError):
            made.rmdir()
            return
        time.sleep(0.1)


def write_idx(folder: Path, split: str, blocks: int, rows: int) -> None:
    """Write random images of 28x28 pixels and their labels, block by block."""
    generator = np.random.default_rng(len(split))
    with (
        (folder / f"{split}-images-idx3-ubyte").open("wb") as images,
        (folder / f"{split}-labels-idx1-ubyte").open("wb") as labels,
    ):
        images.write(np.array([0x803, blocks * rows, 28, 28], ">u4").tobytes())
        labels.write(np.array([0x801, blocks * rows], ">u4").tobytes())
        for _ in range(blocks):
            images.write(generator.bytes(rows * 784))
            labels.write((np.arange(rows) % 10).astype(np.uint8).tobytes())


@pytest.mark.slow
def test_more_images_than_memory(group: Path, tmp_path: Path) -> None:
    raw = tmp_path / "raw"
    raw.mkdir()
    write_idx(raw, "train", _BLOCKS, _BLOCK)
    write_idx(raw, "t10k", 1, 1000)
    assert (raw / "train-images-idx3-ubyte").stat().st_size > 1.5 * _LIMIT

    enter = f'echo $$ > {group}/cgroup.procs; exec "$@"'
    script = [sys.executable, str(_HERE / "larger_than_memory.py"), str(tmp_path / "home"), str(raw)]
    path = os.pathsep.join(map(str, (_HERE.parents[1], _HERE.parent)))
    done = subprocess.run(
        ["sh", "-c", enter, "sh", *script],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=550,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {"rows": _BLOCKS * _BLOCK, "steps": 100}
    assert "oom_kill 0" in (group / "memory.oom_control").read_text()
