"""Typed access to the section `training` of a run of Evergreen's own loop."""

from typing import TYPE_CHECKING, cast

from training.settings.schema import Settings

if TYPE_CHECKING:  # an import would put the texts of the settings into the run key
    from training.settings.network import OwnLoopSettings


def loop_settings(settings: Settings) -> "OwnLoopSettings":
    """The section `training`; only for a run whose trainer uses the own loop."""
    return cast("OwnLoopSettings", settings.training)
