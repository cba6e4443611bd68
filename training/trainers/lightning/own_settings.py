"""Typed access to the section `training` of a run of the trainer `lightning`."""

from typing import TYPE_CHECKING, cast

from training.settings.schema import Settings

if TYPE_CHECKING:  # an import would put the texts of the settings into the run key
    from training.trainers.lightning.settings import LightningSettings


def own_settings(settings: Settings) -> "LightningSettings":
    """The section `training`; only for a run of the trainer `lightning`."""
    return cast("LightningSettings", settings.section_of("lightning"))
