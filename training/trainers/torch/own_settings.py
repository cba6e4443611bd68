"""The section `training` of a run of the PyTorch loop, typed."""

from typing import TYPE_CHECKING, cast

from training.settings.schema import Settings

if TYPE_CHECKING:  # an import would put the texts of the settings into the run key
    from training.trainers.torch.settings import TrainingSettings


def own_settings(settings: Settings) -> "TrainingSettings":
    """The section `training` of the PyTorch loop; only for a run of that trainer."""
    return cast("TrainingSettings", settings.section_of("torch"))
