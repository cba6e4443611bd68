"""Copies a worker's control files to the driver, for workers that share no disk with the driver.

A worker writes its heartbeats, metric points, history and logs to a folder on its own node, with the same paths as in
the run's folder. :class:`Outbox` collects what the worker has written since the last call; :class:`DriverSide`
applies these changes to the run's folder on the driver's machine, and replies with the driver's requests and the
fence.
"""

from dataclasses import dataclass, field
from pathlib import Path

from training.attempts.fence import Fence
from training.records import Record
from training.storage.files import write_text
from training.storage.paths import RunPaths

_RANK_FILES = ("beats/rank-{}.json", "logs/rank-{}.jsonl", "stacks/rank-{}.txt", "replay.json")
_OF_FIRST = ("metrics.jsonl", "attempts.jsonl")
_TAIL = 4096  # bytes; a whole heartbeat, or some 20 metric points
CLOSED = "0.0"  # content of the file `fence` that fences out all attempts


@dataclass(frozen=True)
class Change:
    """New content of the file `name`: bytes to append if `appended`, else the whole file."""

    name: str
    content: bytes
    appended: bool


class Reply(Record):
    """The driver's answer: whether to stop, whether to save a checkpoint, and the content of the run's file `fence`."""

    stop: bool
    save: bool
    fence: str


@dataclass
class Outbox:
    """Collects the changes of one worker's control files in the folder `root`, for the driver.

    `fence` is the content of the run's file `fence` when the worker began.

    A change counts as an append if the file still has the bytes that were sent: the last `_TAIL` of them are
    compared, which hold whole lines with their numbers and times. Otherwise the file was replaced. Inodes would not
    distinguish the two: a new file may get the inode of the file that it replaces.
    """

    root: Path
    rank: int
    fence: str
    # By name: number of bytes sent, and the last of these bytes.
    _sent: dict[str, tuple[int, bytes]] = field(default_factory=dict)
    # Heartbeats of older attempts, from the driver: not sent back when they are written to `root` again.
    _received: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        of_first = _OF_FIRST if self.rank == 0 else ()
        self._names = [name.format(self.rank) for name in (*_RANK_FILES, *of_first)]
        # Files that exist now came from the driver: their content counts as sent.
        self._received = {
            change.name: change.content for change in self.changes() if change.name.startswith("beats/")
        }

    def changes(self) -> list[Change]:
        """What the worker has written since the last call, in the order in which it must be applied."""
        return [change for name in self._names if (change := self._change(name)) is not None]

    def _change(self, name: str) -> Change | None:
        sent, tail = self._sent.get(name, (0, b""))
        try:
            with (self.root / name).open("rb") as stream:
                stream.seek(sent - len(tail))
                appended = name in self._sent and stream.read(len(tail)) == tail
                stream.seek(sent if appended else 0)
                content = stream.read()
        except FileNotFoundError:
            return None
        if (appended and not content) or (not appended and content == self._received.get(name)):
            return None
        known = tail + content if appended else content
        self._sent[name] = (sent if appended else 0) + len(content), known[-_TAIL:]
        return Change(name, content, appended)

    def apply_reply(self, reply: Reply) -> None:
        """Write the driver's requests to the files that the worker polls; a changed fence fences out its group.

        `self.fence` is not changed: by its value, the driver recognises a worker that was replaced.
        """
        paths = RunPaths(self.root)
        if reply.fence != self.fence and self.rank == 0:
            # Another group of workers began: this group must not even enter the fence.
            write_text(paths.fence, CLOSED, durable=False)
        if reply.save:
            paths.save.touch()
        if reply.stop:
            paths.stop.touch()
        else:
            paths.stop.unlink(missing_ok=True)


class DriverSide:
    """Actor on the driver's machine through which workers read and change files of the run in the folder `root`."""

    def __init__(self, root: str):
        self._paths = RunPaths(Path(root))

    def begin(self, rank: int, attempt: int, driver: str) -> tuple[dict[str, bytes], str]:
        """The files of the run that a worker needs before it trains, by name, and the content of the run's fence.

        For the first worker, also starts a group of workers. The returned file `fence` still names the previous
        group: the worker enters its group in its own copy of the file, as a worker that shares the run's folder does.
        Raises :class:`training.attempts.fence.SupersededError` if a newer attempt has begun.
        """
        names = ["fence", "replay.json", f"logs/rank-{rank}.jsonl", *(_OF_FIRST if rank == 0 else ())]
        files = [self._paths.root / name for name in names]
        files += [*self._paths.beats.glob("rank-*.json"), *self._paths.recipe.rglob("*")]
        contents = {
            file.relative_to(self._paths.root).as_posix(): file.read_bytes()
            for file in files
            if file.is_file() and "__pycache__" not in file.parts
        }
        if rank == 0:
            Fence.enter(self._paths, attempt, driver)
        return contents, _text(self._paths.fence)

    def exchange(self, rank: int, changes: list[Change], known: str) -> Reply:
        """Apply a worker's changes to the run's files; returns the driver's requests. Each save is requested once.

        `known` is the content of the fence when the worker began. Changes of a worker of an older attempt are dropped,
        and such a worker gets no request to save; the same holds for the first worker of an older group of workers.
        """
        fence = _text(self._paths.fence)
        # Other workers may have begun before the first worker entered the group: only their attempt's number counts.
        current = known == fence or (rank > 0 and known.partition(".")[0] == fence.partition(".")[0])
        for change in changes if current else ():
            self._apply(change)
        save = current and rank == 0 and self._paths.save.exists()
        if save:
            self._paths.save.unlink(missing_ok=True)
        return Reply(stop=self._paths.stop.exists(), save=save, fence=fence)

    def _apply(self, change: Change) -> None:
        target = self._paths.root / change.name
        target.parent.mkdir(exist_ok=True)
        if change.appended:
            with target.open("ab") as out:
                out.write(change.content)
        else:
            aside = target.with_name(f".{target.name}.tmp")
            aside.write_bytes(change.content)
            aside.replace(target)


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""
