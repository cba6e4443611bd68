"""The trainer `xgboost` in a recipe."""

from training.trainers.choice import BySettings
from training.trainers.xgboost.settings import XGBoostSettings


class XGBoost(BySettings):
    """The trainer `xgboost`: gradient-boosted trees on tables, with the fields of :class:`XGBoostSettings`.

    `XGBoost(max_depth=4, rounds=300)`. Raises :class:`training.errors.SettingError` for an unknown or invalid setting.
    """

    SECTION = XGBoostSettings
