"""Conversion of inputs for the model: images are normalised and augmented, the columns of a table standardised.

Token ids of text reach the model as they are.
"""

from dataclasses import dataclass
from typing import Protocol

import torch  # noqa: TID253 - imported by processes that train, export or score a model
from torch import nn  # noqa: TID253

from training.data.images.augmentation import Augmentation, augment, normaliser
from training.data.sample_order import Rows
from training.errors import SettingError
from training.recipe import Recipe
from training.recipe_checks import check_augmentation_of
from training.records import DatasetVersion, TableSchema
from training.settings.schema import Settings
from training.text_shape import TextShape
from training.trainers.network.own_settings import network_settings


class Inputs(Protocol):
    """Converts inputs (:class:`training.data.columns.Columns`) to what the recipe's model takes, on its device."""

    @property
    def unit(self) -> str:
        """What a row is called in names of metrics and messages: "images" or "rows"."""

    def plain(self, inputs: torch.Tensor) -> torch.Tensor:
        """Inputs of the model without random changes."""

    def augmented(self, inputs: torch.Tensor, rows: Rows, epoch: int) -> torch.Tensor:
        """Inputs of the model for training; random changes depend on (seed, epoch, row) only."""


@dataclass(frozen=True)
class ImageInputs:
    """Images, normalised and augmented. `black` is the normalised value of a black pixel per channel."""

    normalise: nn.Module
    black: torch.Tensor
    augmentation: Augmentation
    seed: int
    channels_last: bool
    unit: str = "images"

    def plain(self, inputs: torch.Tensor) -> torch.Tensor:
        """See :class:`Inputs`."""
        result: torch.Tensor = self.normalise(inputs)
        return result

    def augmented(self, inputs: torch.Tensor, rows: Rows, epoch: int) -> torch.Tensor:
        """See :class:`Inputs`."""
        images = augment(self.plain(inputs), rows, self.augmentation, self.seed, epoch, self.black)
        if self.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        return images


@dataclass(frozen=True)
class TableInputs:
    """Rows of a table, converted by :class:`TableEncoder`; or token ids of text, which are not converted."""

    encoder: nn.Module
    unit: str = "rows"

    def plain(self, inputs: torch.Tensor) -> torch.Tensor:
        """See :class:`Inputs`."""
        result: torch.Tensor = self.encoder(inputs)
        return result

    def augmented(self, inputs: torch.Tensor, rows: Rows, epoch: int) -> torch.Tensor:
        """See :class:`Inputs`; rows of a table and of text are not augmented."""
        del rows, epoch
        return self.plain(inputs)


class TableEncoder(nn.Module):
    """Converts the encoded columns of a table, float32 (rows, columns), to a network's features, (rows, width).

    `width` counts one feature for each number, boolean and date, and one for each category of a category column, in the
    order of the columns. A number is standardised by the mean and standard deviation of the train split; a missing
    number becomes 0, the mean. A category is one-hot; a missing or unknown category is 0 in all features of its column.
    """

    source: torch.Tensor
    mean: torch.Tensor
    std: torch.Tensor
    category: torch.Tensor
    is_category: torch.Tensor

    def __init__(self, schema: TableSchema) -> None:
        super().__init__()
        source, mean, std, category = [], [], [], []
        for number, column in enumerate(schema.columns):
            # A number has the category -1. A category takes mean 0 and deviation 1, which its features do not use.
            codes = range(len(column.categories)) if column.kind == "category" else [-1]
            source += [number] * len(codes)
            mean += [column.mean] * len(codes)
            std += [column.std] * len(codes)
            category += [float(code) for code in codes]
        self.register_buffer("source", torch.tensor(source, dtype=torch.int64), persistent=False)
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32), persistent=False)
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32), persistent=False)
        self.register_buffer("category", torch.tensor(category, dtype=torch.float32), persistent=False)
        self.register_buffer("is_category", self.category >= 0, persistent=False)

    @property
    def width(self) -> int:
        """Number of features."""
        return len(self.source)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The features of encoded rows. Comparisons with NaN are false: a missing category is in no feature."""
        values = inputs.index_select(1, self.source)
        scaled = (values - self.mean) / self.std
        numbers = torch.where(torch.isnan(values), torch.zeros_like(scaled), scaled)
        return torch.where(self.is_category, (values == self.category).to(torch.float32), numbers)


def encoder_of(version: DatasetVersion) -> nn.Module:
    """The module that converts a batch of inputs to what the model takes: a part of the exported program."""
    if version.table is None or version.has_images:
        return normaliser(version.mean, version.std)
    if version.text is not None:
        return nn.Identity()
    return TableEncoder(version.table)


def model_shape(version: DatasetVersion) -> tuple[int, ...]:
    """Shape of a row of the model's inputs: (channels, height, width), (features,) or a :class:`TextShape` (tokens,).

    Raises :class:`SettingError` for a table without any feature.
    """
    if version.table is None or version.has_images:
        return version.shape
    if version.text is not None:
        return TextShape(version.text.length, version.text.vocabulary, version.text.padding)
    width = TableEncoder(version.table).width
    if not width:
        raise SettingError(
            f"dataset {version.name}: no column of the table has a value to learn from; check the source's target and "
            "drop"
        )
    return (width,)


def example_inputs(version: DatasetVersion, rows: int) -> torch.Tensor:
    """Inputs of zeros: black images, or rows of a table; of text, the token with id 0."""
    kind = torch.int64 if version.text is not None else torch.float32
    return torch.zeros((rows, *version.shape), dtype=torch.uint8 if version.has_images else kind)


def inputs_of(
    recipe: Recipe,
    version: DatasetVersion,
    settings: Settings,
    device: torch.device,
    channels_last: bool = False,
) -> Inputs:
    """The conversion of this dataset's inputs for the recipe's model, on `device`.

    Raises :class:`SettingError` if the recipe has augmentation, and the rows are no images.
    """
    encoder = encoder_of(version).to(device)
    if not version.has_images:
        check_augmentation_of(recipe, version)
        return TableInputs(encoder)
    black = encoder(torch.zeros((1, version.shape[0], 1, 1), dtype=torch.uint8, device=device))
    augmentation = recipe.augmentation if network_settings(settings).augment else Augmentation()
    return ImageInputs(encoder, black, augmentation, settings.seed, channels_last)
