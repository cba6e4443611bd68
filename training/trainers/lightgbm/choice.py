"""The trainer `lightgbm` in a recipe."""

from typing import Unpack

from training.trainers.choice import BySettings
from training.trainers.lightgbm.settings import LightGBMArguments, LightGBMSettings


class LightGBM(BySettings):
    """The trainer `lightgbm`: gradient-boosted trees on tables, with the fields of :class:`LightGBMSettings`.

    `LightGBM(num_leaves=15, rounds=300)`. Raises :class:`training.errors.SettingError` for an unknown or invalid
    setting.
    """

    SECTION = LightGBMSettings

    def __init__(self, **settings: Unpack[LightGBMArguments]):
        super().__init__(**settings)
