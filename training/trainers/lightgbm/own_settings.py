"""The settings section `training` of a run of LightGBM, with its type."""

from typing import TYPE_CHECKING, cast

from training.settings.schema import Settings

if TYPE_CHECKING:  # an import would put the texts of the settings into the run key
    from training.trainers.lightgbm.settings import LightGBMSettings


def own_settings(settings: Settings) -> "LightGBMSettings":
    """The section `training`, which has LightGBM's type in a run of the trainer `lightgbm`; only for such a run."""
    return cast("LightGBMSettings", settings.section_of("lightgbm"))
