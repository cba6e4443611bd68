"""The settings section `training` of a run of XGBoost, with its type."""

from typing import TYPE_CHECKING, cast

from training.settings.schema import Settings

if TYPE_CHECKING:  # an import would put the texts of the settings into the run key
    from training.trainers.xgboost.settings import XGBoostSettings


def own_settings(settings: Settings) -> "XGBoostSettings":
    """The section `training`, which has XGBoost's type in a run of the trainer `xgboost`; only for such a run."""
    return cast("XGBoostSettings", settings.section_of("xgboost"))
