"""Typed access to the section `training` of a run whose trainer trains networks."""

from typing import TYPE_CHECKING, cast

from training.settings.schema import Settings

if TYPE_CHECKING:  # an import would put the texts of the settings into the run key
    from training.settings.fine_tuning import FineTuningSettings
    from training.settings.network import NetworkSettings


def network_settings(settings: Settings) -> "NetworkSettings":
    """The section `training`; only for a run whose trainer trains networks."""
    return cast("NetworkSettings", settings.training)


def fine_tuning_settings(settings: Settings) -> "FineTuningSettings":
    """The section `training`; only for a run whose trainer can start from given weights."""
    return cast("FineTuningSettings", settings.training)
