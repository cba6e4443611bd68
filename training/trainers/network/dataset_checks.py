"""Checks that the settings of a network suit a dataset.

`plan` and each worker call these checks, so this module does not import torch.
"""

from training.errors import SettingError
from training.problems.objectives import objective_named
from training.records import DatasetVersion


def check_smoothing(setting: str, smoothing: float, version: DatasetVersion) -> None:
    """Raise :class:`SettingError`, naming `setting`, for label smoothing if the problem's loss has none."""
    if smoothing and not objective_named(version.problem).smooths:
        raise SettingError(
            f"{setting}: only classification has labels to smooth, and this is {version.problem}; remove the setting"
        )


def check_channels_last(channels_last: bool, version: DatasetVersion) -> None:
    """Raise :class:`SettingError` for the memory format channels-last if the rows are no images."""
    if channels_last and not version.has_images:
        raise SettingError("training.channels_last: only images have channels; remove the setting")
