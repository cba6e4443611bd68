"""Normalisation and augmentation: convert batches of uint8 images to the model's input, on the training device."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from training.data.sample_order import AUGMENTATION, Rows, stream_key, uniforms

if TYPE_CHECKING:
    import torch
    from torch import nn


@dataclass(frozen=True)
class Augmentation:
    """Random changes to training images; the change of a row depends on (seed, epoch, row) only.

    `shift` (in pixels), `rotation` (in degrees) and `scale` (as a share of the size) are the largest changes in
    either direction. `flip` mirrors left and right with probability 1/2. Pixels from outside the image are black.
    """

    shift: int = 0
    rotation: float = 0.0
    scale: float = 0.0
    flip: bool = False


def normaliser(mean: tuple[float, ...], std: tuple[float, ...]) -> "nn.Module":
    """A module that normalises uint8 images (rows, channels, height, width) to zero mean and unit deviation.

    `mean` and `std` are per channel, of pixel/255. The output is float32.
    """
    import torch
    from torch import nn

    class Normalise(nn.Module):
        scale: torch.Tensor
        shift: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            shape = (1, len(mean), 1, 1)
            self.register_buffer("scale", (1 / (255 * torch.tensor(std))).reshape(shape), persistent=False)
            self.register_buffer(
                "shift", (-torch.tensor(mean) / torch.tensor(std)).reshape(shape), persistent=False
            )

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            # In place on the copy: allocating memory for each intermediate result takes twice the time.
            return images.to(torch.float32, copy=True).mul_(self.scale).add_(self.shift)

    return Normalise()


def augment(
    images: "torch.Tensor", rows: Rows, spec: Augmentation, seed: int, epoch: int, black: "torch.Tensor"
) -> "torch.Tensor":
    """Randomly change normalised float images; the change of row r depends on (seed, epoch, r) only.

    `black` is the normalised value of a black pixel per channel; it fills pixels from outside the image.
    """
    import torch

    if spec == Augmentation():
        return images
    draws = uniforms(stream_key(seed, epoch, AUGMENTATION), rows, 5)
    if spec.rotation or spec.scale:
        return _affine(images - black, draws, spec) + black
    if spec.flip:
        mirrored = torch.from_numpy(draws[:, 4] < 0.5).to(images.device)
        images = torch.where(mirrored[:, None, None, None], images.flip(-1), images)
    return _shift(images, draws, spec.shift, black) if spec.shift else images


def _affine(
    images: "torch.Tensor", draws: "np.ndarray[tuple[int, int], np.dtype[np.float32]]", spec: Augmentation
) -> "torch.Tensor":
    import torch
    import torch.nn.functional as functional

    height, width = images.shape[-2:]
    signed = draws * 2 - 1
    angle = signed[:, 0] * math.radians(spec.rotation)
    size = 1 + signed[:, 1] * spec.scale
    mirror = np.where(draws[:, 4] < 0.5, -1.0, 1.0) if spec.flip else np.ones(len(draws))
    theta = np.zeros((len(draws), 2, 3), np.float32)
    # Grid coordinates are in units of half a side: without the factors of height and width, a rotation would shear an
    # image that is not square.
    theta[:, 0, 0], theta[:, 0, 1] = mirror * np.cos(angle) / size, -np.sin(angle) / size * (height / width)
    theta[:, 1, 0], theta[:, 1, 1] = mirror * np.sin(angle) / size * (width / height), np.cos(angle) / size
    theta[:, 0, 2] = signed[:, 2] * 2 * spec.shift / width
    theta[:, 1, 2] = signed[:, 3] * 2 * spec.shift / height
    grid = functional.affine_grid(
        torch.from_numpy(theta).to(images.device), list(images.shape), align_corners=False
    )
    return functional.grid_sample(images, grid, align_corners=False)


def _shift(
    images: "torch.Tensor",
    draws: "np.ndarray[tuple[int, int], np.dtype[np.float32]]",
    limit: int,
    black: "torch.Tensor",
) -> "torch.Tensor":
    """Move each image by whole pixels: pad, then gather one window per image (the usual padded random crop)."""
    import torch
    import torch.nn.functional as functional

    rows, channels, height, width = images.shape
    offsets = np.minimum((draws[:, 2:4] * (2 * limit + 1)).astype(np.int64), 2 * limit)
    padded = functional.pad(images - black, (limit, limit, limit, limit)) + black
    down = torch.from_numpy(offsets[:, :1] + np.arange(height)).to(images.device)
    across = torch.from_numpy(offsets[:, 1:] + np.arange(width)).to(images.device)
    index = torch.arange(rows, device=images.device)
    return padded[
        index[:, None, None, None],
        torch.arange(channels, device=images.device)[None, :, None, None],
        down[:, None, :, None],
        across[:, None, None, :],
    ]
