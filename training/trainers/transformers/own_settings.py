"""Typed access to the section `training` of a run of the trainer `transformers`."""

from typing import TYPE_CHECKING, cast

from training.settings.schema import Settings

if TYPE_CHECKING:  # an import would put the texts of the settings into the run key
    from training.trainers.transformers.settings import TransformersSettings


def own_settings(settings: Settings) -> "TransformersSettings":
    """The section `training`; only for a run of the trainer `transformers`."""
    return cast("TransformersSettings", settings.section_of("transformers"))
