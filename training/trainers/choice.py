"""How a recipe chooses a trainer: `trainer=XGBoost(max_depth=4)`."""

from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from training.errors import SettingError
from training.settings.sections import TrainerSettings

if TYPE_CHECKING:
    from training.settings.schema import Settings  # which imports the settings of all trainers


class TrainerChoice(Protocol):
    """The trainer of a recipe."""

    def adapted(self, settings: "Settings") -> "Settings":
        """The recipe's settings with the section `training` of this trainer.

        Raises :class:`SettingError` if `settings` has values of another trainer.
        """


class BySettings:
    """A trainer that a recipe chooses by the values of its section; `SECTION` is the section.

    Raises :class:`SettingError` for an unknown or invalid setting.
    """

    SECTION: ClassVar[type[TrainerSettings]]

    def __init__(self, **settings: Any):
        from training.settings.overrides import section_of

        self.settings = section_of(self.SECTION, settings, type(self).__name__)

    def adapted(self, settings: "Settings") -> "Settings":
        """The recipe's settings with the section `training` of this trainer.

        Raises :class:`SettingError` if `settings` sets values of that section: they would have no effect.
        """
        if settings.training not in (type(settings)().training, self.settings):
            raise SettingError(
                f"settings: give the settings of `training` to {type(self).__name__}(...) instead"
            )
        return settings.model_copy(update={"training": self.settings})
