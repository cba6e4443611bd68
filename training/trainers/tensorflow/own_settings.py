"""Typed access to the section `training` of a run of the trainer `tensorflow`."""

from typing import TYPE_CHECKING, cast

from training.settings.schema import Settings

if TYPE_CHECKING:  # an import would put the texts of the settings into the run key
    from training.trainers.tensorflow.settings import TensorFlowSettings


def own_settings(settings: Settings) -> "TensorFlowSettings":
    """The section `training`; only for a run of the trainer `tensorflow`."""
    return cast("TensorFlowSettings", settings.section_of("tensorflow"))
