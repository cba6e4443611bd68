"""Images that a denoising model generates, by the deterministic sampler DDIM.

Source: J. Song, C. Meng and S. Ermon, "Denoising Diffusion Implicit Models", ICLR 2021, equation 12 without noise.
"""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from training.problems.objectives.denoising import SCHEDULE
from training.records import DatasetVersion

if TYPE_CHECKING:
    import torch
    from torch import nn

_STEPS = 50  # more if 50 does not divide the schedule's length
_SEED = 1
_SHOWN_CLASSES = 25  # more would be many images in one pass, which nobody looks at
_BLACK, _WHITE = 0.0, 1.0


def generated_images(module: "nn.Module", version: DatasetVersion, count: int) -> npt.NDArray[np.uint8]:
    """`count` images of each of the first 25 classes, uint8 (classes, count, channels, height, width).

    `module` is that of a recipe with the problem `Denoising`; it is put into evaluation mode. The same module gives the
    same images, and the n-th images of all classes begin with the same noise.
    """
    import torch

    module.eval()
    classes, shape = min(len(version.classes), _SHOWN_CLASSES), version.shape
    noise = torch.randn((count, *shape), generator=torch.Generator().manual_seed(_SEED))
    start = noise.repeat(classes, 1, 1, 1)
    with torch.inference_mode():
        images = _denoised(module, start, torch.arange(classes).repeat_interleave(count), _range(version))
    mean, std = _statistics(version)
    pixels = ((images * std + mean).clamp(_BLACK, _WHITE) * 255).round().to(torch.uint8).numpy()
    generated: npt.NDArray[np.uint8] = pixels.reshape(classes, count, *shape)
    return generated


def _denoised(
    module: "nn.Module",
    images: "torch.Tensor",
    classes: "torch.Tensor",
    limits: "tuple[torch.Tensor, torch.Tensor]",
) -> "torch.Tensor":
    """`images`, which are noise, after all steps of the sampler; `limits` are black and white after normalisation."""
    import torch

    schedule = getattr(module, SCHEDULE)
    steps = range(len(schedule) - 1, -1, -max(1, len(schedule) // _STEPS))
    clean = images
    for now, following in zip(steps, [*steps[1:], None], strict=True):
        output = module(images, torch.full((len(images),), now), classes)
        noise = getattr(output, "sample", output)
        kept = schedule[now]
        clean = ((images - (1 - kept).sqrt() * noise) / kept.sqrt()).clamp(*limits)
        if following is None:
            break
        noise = (images - kept.sqrt() * clean) / (1 - kept).sqrt()  # consistent with the clamped image
        images = schedule[following].sqrt() * clean + (1 - schedule[following]).sqrt() * noise
    return clean


def _statistics(version: DatasetVersion) -> "tuple[torch.Tensor, torch.Tensor]":
    """Mean and standard deviation of the channels, by which images are normalised."""
    import torch

    mean, std = (
        torch.tensor(values, dtype=torch.float32)[:, None, None] for values in (version.mean, version.std)
    )
    return mean, std


def _range(version: DatasetVersion) -> "tuple[torch.Tensor, torch.Tensor]":
    """Black and white pixels after normalisation."""
    mean, std = _statistics(version)
    return (_BLACK - mean) / std, (_WHITE - mean) / std
