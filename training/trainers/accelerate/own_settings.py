"""Typed access to the section `training` of a run of the trainer `accelerate`."""

from typing import TYPE_CHECKING, cast

from training.settings.schema import Settings

if TYPE_CHECKING:  # an import would put the texts of the settings into the run key
    from training.trainers.accelerate.settings import AccelerateSettings


def own_settings(settings: Settings) -> "AccelerateSettings":
    """The section `training`; only for a run of the trainer `accelerate`."""
    return cast("AccelerateSettings", settings.section_of("accelerate"))
