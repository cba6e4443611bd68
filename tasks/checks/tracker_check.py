"""In: settings. Out: nothing. Fails with SettingError when the library of a tracker in `tracking.also` is missing."""

from importlib.util import find_spec

from tasks.trackers.base import TrackerClass
from training.errors import SettingError
from training.seams import TRACKERS, install_command, part_named
from training.settings.schema import Settings


def check_trackers(settings: Settings) -> None:
    """Raise :class:`SettingError` when the library of a tracker in `tracking.also` is not installed."""
    for name in settings.tracking.also:
        tracker: TrackerClass = part_named(TRACKERS, name)
        spec = find_spec(tracker.library)
        # Without an origin, it is a folder and no library, such as the `wandb` that W&B writes to a working directory.
        if spec is None or spec.origin is None:
            raise SettingError(
                f"tracking.also: {name} needs the library {tracker.library}, which is not installed; install it by "
                f"`{install_command(tracker.library)}`, or leave out {name}"
            )
