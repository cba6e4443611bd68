"""The section `training` of a run of XGBoost, typed."""

from typing import TYPE_CHECKING, cast

from training.settings.schema import Settings

if TYPE_CHECKING:  # an import would put the texts of the settings into the run key
    from training.trainers.xgboost.settings import XGBoostSettings


def own_settings(settings: Settings) -> "XGBoostSettings":
    """The section `training` of XGBoost; only for a run of that trainer."""
    return cast("XGBoostSettings", settings.section_of("xgboost"))
