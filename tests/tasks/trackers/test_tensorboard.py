"""TensorBoard's event files, read as TensorBoard reads them."""

import struct
from collections.abc import Iterator
from pathlib import Path

from tensorboardX.proto.event_pb2 import Event, SessionLog
from tracker_contract import Shown, TrackerContract

from tasks.trackers.base import RunInfo


def events(file: Path) -> Iterator[Event]:
    """The records of an event file; each has a length, the length's checksum, content and the content's checksum."""
    content, start = file.read_bytes(), 0
    while start < len(content):
        (length,) = struct.unpack_from("<Q", content, start)
        event = Event()
        event.ParseFromString(content[start + 12 : start + 12 + length])
        yield event
        start += 16 + length


class TestTensorBoard(TrackerContract):
    name = "tensorboard"

    def shown(self, run: RunInfo) -> Shown:
        """Scalars of all event files; the start of a session hides earlier scalars from its step on."""
        metrics: Shown = {}
        for file in sorted(
            (run.folder / "tensorboard").glob("events.*"), key=lambda path: path.stat().st_mtime_ns
        ):
            for event in events(file):
                if event.session_log.status == SessionLog.START:
                    metrics = {
                        name: [row for row in rows if row[0] < event.step] for name, rows in metrics.items()
                    }
                for value in event.summary.value:
                    if value.HasField("simple_value"):
                        metrics.setdefault(value.tag, []).append(
                            (event.step, value.simple_value, event.wall_time)
                        )
        return {name: rows for name, rows in metrics.items() if rows}
