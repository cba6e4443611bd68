"""A recipe's LightningDataModule, whose hooks Lightning calls and whose data loaders Evergreen replaces."""

from typing import Any

from lightning.pytorch import LightningDataModule  # noqa: TID253

from training.errors import SettingError
from training.recipe import Recipe
from training.trainers.lightning.batches import Batches, ValidationBatches


def build_datamodule(recipe: Recipe) -> LightningDataModule | None:
    """The recipe's LightningDataModule; None if the recipe has none.

    Raises :class:`SettingError` if the recipe's function builds something else.
    """
    build = getattr(recipe.trainer, "build_datamodule", None)
    if build is None:
        return None
    datamodule = build()
    if not isinstance(datamodule, LightningDataModule):
        raise SettingError(
            f"recipe {recipe.name}: build_datamodule must return a LightningDataModule of the package lightning (not "
            f"pytorch_lightning), and it returned a {type(datamodule).__name__}"
        )
    return datamodule


def data_arguments(
    datamodule: LightningDataModule | None, batches: Batches, validation: ValidationBatches | None
) -> dict[str, Any]:
    """The arguments of `Trainer.fit` that name the data: the batches, or `datamodule` with the batches as its loaders.

    Lightning refuses a data module beside data loaders.
    """
    if datamodule is None:
        return {"train_dataloaders": batches, "val_dataloaders": validation}
    datamodule.train_dataloader = lambda: batches
    datamodule.val_dataloader = lambda: [] if validation is None else validation
    return {"datamodule": datamodule}
