"""Full disks, and files damaged between two starts: checkpoints and the dataset."""

import resource
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from benchmarks.chaos.faults import IN_PROCESS, Fault
from benchmarks.chaos.faults.kills import kill_flow_after_checkpoints
from benchmarks.chaos.trial import Trial
from training.checkpoints.checkpoint_files import MANIFEST, STATE
from training.errors import EXIT_BAD_DATA, EXIT_RESOURCE

_DISK_MB = 400


def fill_disk(trial: Trial) -> None:
    """Fill the home's own file system, or limit the size of files, for the rest of a start of the command."""
    trial.pick((_full_file_system, _limit_file_size))(trial)


def _full_file_system(trial: Trial) -> None:
    root = trial.home.root
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK_MB}m", "evergreen-chaos", str(root)]
    made = subprocess.run(mount, capture_output=True, text=True, check=False)
    if made.returncode:
        trial.hit(f"a file system of its own (mount: {made.stderr.strip()})", injected=False)
        return _limit_file_size(trial)
    trial.stack.callback(subprocess.run, ["umount", "-l", str(root)], check=True)
    trial.fill_home()
    trial.start()
    moment = trial.wait_for_some_moment()
    filler = root / "filler"
    _fill(filler)
    trial.hit(f"the disk is full {moment}", not trial.run.ended)
    trial.expect(EXIT_RESOURCE)
    filler.unlink()
    return None


def _fill(file: Path) -> None:
    with file.open("wb", buffering=0) as out:
        block = bytes(1 << 20)
        while len(block):
            try:
                out.write(block)
            except OSError:
                block = block[: len(block) // 2]


def _limit_file_size(trial: Trial) -> None:
    trial.start()
    moment = trial.wait_for_some_moment()
    limit = trial.random.choice((0, 1_000, 10_000))
    alive = not trial.run.ended
    if alive:
        psutil.Process(trial.run.pid).rlimit(resource.RLIMIT_FSIZE, (limit, limit))
    trial.hit(f"RLIMIT_FSIZE {limit} {moment}", alive)
    trial.expect(EXIT_RESOURCE)


def damage_checkpoint(trial: Trial) -> None:
    """SIGKILL the command after a few checkpoints, then damage the newest checkpoint."""
    kill_flow_after_checkpoints(trial, 2)
    entries = sorted(trial.paths.checkpoints.glob("step-*"))
    damage = trial.pick(CHECKPOINT_DAMAGES)
    if entries:
        damage(entries[-1])
    what = f"{entries[-1].name if entries else 'no checkpoint'} {_words(damage)}"
    trial.hit(what, bool(entries))


def state_truncated(folder: Path) -> None:
    _truncate(folder / STATE)


def state_flipped(folder: Path) -> None:
    _flip(folder / STATE)


def manifest_torn(folder: Path) -> None:
    _truncate(folder / MANIFEST)


def state_missing(folder: Path) -> None:
    (folder / STATE).unlink()


def state_empty(folder: Path) -> None:
    (folder / STATE).write_bytes(b"")


def manifest_missing(folder: Path) -> None:
    (folder / MANIFEST).unlink()


def everything_damaged(folder: Path) -> None:
    for checkpoint in folder.parent.glob("step-*"):
        _flip(checkpoint / STATE)


def metrics_torn(folder: Path) -> None:
    """Truncate the last line of the metrics file, as a crash of the machine would."""
    _truncate(folder.parent.parent / "metrics.jsonl", by=20)


CHECKPOINT_DAMAGES: tuple[Callable[[Path], None], ...] = (
    state_truncated,
    state_flipped,
    manifest_torn,
    state_missing,
    state_empty,
    manifest_missing,
    everything_damaged,
    metrics_torn,
)


def damage_dataset(trial: Trial) -> None:
    """Damage a part file before the start: it must be refused, and built again if the source is available."""
    part = trial.random.choice(sorted(trial.home.datasets.rglob("part-*.parquet")))
    damage = trial.pick(DATASET_DAMAGES)
    damage(part)
    trial.start()
    trial.hit(f"{part.parent.name}/{part.name} {_words(damage)} before the start")
    trial.hit_at = time.time()
    trial.expect(EXIT_BAD_DATA)


def part_truncated(part: Path) -> None:
    _truncate(part)


def part_flipped(part: Path) -> None:
    _flip(part)


def part_missing(part: Path) -> None:
    part.unlink()


def part_extra(part: Path) -> None:
    part.with_name("part-99999.parquet").write_bytes(part.read_bytes())


def part_swapped(part: Path) -> None:
    """Swap the names of this part and a part of the other split."""
    other = next(
        file for file in sorted(part.parents[1].rglob("part-*.parquet")) if file.parent != part.parent
    )
    aside = part.with_suffix(".aside")
    part.rename(aside)
    other.rename(part)
    aside.rename(other)


def part_empty(part: Path) -> None:
    part.write_bytes(b"")


DATASET_DAMAGES: tuple[Callable[[Path], None], ...] = (
    part_truncated,
    part_flipped,
    part_missing,
    part_extra,
    part_swapped,
    part_empty,
)


def _words(damage: Callable[[Path], None]) -> str:
    return damage.__name__.replace("_", " ")


def _truncate(file: Path, by: int | None = None) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: -(by or len(content) // 2)])


def _flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


FAULTS = (
    Fault("F12", "disk full, file size limited", fill_disk, (IN_PROCESS,)),
    Fault("F13", "newest checkpoint damaged between two starts", damage_checkpoint, (IN_PROCESS,)),
    Fault("F14", "dataset damaged", damage_dataset, (IN_PROCESS,)),
)
