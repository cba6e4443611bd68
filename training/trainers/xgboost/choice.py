"""The trainer `xgboost` in a recipe."""

from typing import Unpack

from training.trainers.choice import BySettings
from training.trainers.xgboost.settings import XGBoostArguments, XGBoostSettings


class XGBoost(BySettings):
    """The trainer `xgboost`: gradient-boosted trees on tables, with the fields of :class:`XGBoostSettings`.

    `XGBoost(max_depth=4, rounds=300)`. Raises :class:`training.errors.SettingError` for an unknown or invalid setting.
    """

    SECTION = XGBoostSettings

    def __init__(self, **settings: Unpack[XGBoostArguments]):
        super().__init__(**settings)
