"""Objective of a diffusion model: predict the noise that was added to an image, given the image's class.

The noise schedule and the loss are those of J. Ho, A. Jain and P. Abbeel, "Denoising Diffusion Probabilistic Models",
NeurIPS 2020, equations 4 and 14: a noisy image is sqrt(a) * image + sqrt(1 - a) * noise, where `a` falls from 1 to 0
over the steps of the schedule, and the loss is the mean squared error of the predicted noise.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from training.errors import SettingError, TrainingError
from training.records import DatasetVersion

if TYPE_CHECKING:
    import torch
    from torch import nn

# Values of `a` at which the loss of a row is measured: the same for all models, whatever their noise schedules.
LEVELS = (0.9, 0.5, 0.2, 0.05)
_NEAR = 0.05  # largest distance of a level from the nearest step of a schedule
SCHEDULE = "alphas_cumprod"  # buffer of a recipe's module, named as in diffusers
NOISE = "measured_noise"  # buffer that `adapted` adds
_PASSES_AT_ONCE = 512  # rows of noisy images that a module gets in one call when it is measured
_IMAGE = ("channels", "height", "width")
_SEED = 0  # of the noise by which models are measured: the same for all models of an image shape


@dataclass(frozen=True)
class DenoisingObjective:
    """See :class:`training.problems.objectives.Objective`.

    The output of a row has a loss for each class: the mean squared error of the predicted noise when the module is told
    that the image is of this class. :meth:`adapted` makes these losses from the recipe's module.
    """

    loss: str = "squared_noise_error"
    metric: str = "noise_error"
    target: Literal["class", "number"] = "class"
    smooths = False

    def outputs(self, version: DatasetVersion) -> int:
        """One loss for each class."""
        return len(version.classes)

    def adapted(self, build_model: "Callable[[Any, int], nn.Module]") -> "Callable[[Any, int], nn.Module]":
        """A function that builds the recipe's module, which then also gives the losses of images.

        `build_model(shape, classes)` returns a module whose call with noisy images (rows, channels, height, width),
        steps (rows,) and classes (rows,) gives the predicted noise, as a tensor or as `sample` of a larger output. Its
        buffer `alphas_cumprod` (steps,) is the noise schedule. The call with images alone then gives the losses (rows,
        classes): in evaluation mode with fixed noise at the levels :data:`LEVELS`, each with the nearest step of the
        schedule, so that all models get the same noisy images; in training mode at one random step for each row with
        random noise.

        Raises :class:`SettingError` for rows that are no images, and :class:`TrainingError` for a module without a
        noise schedule, or with a schedule that has no step near one of the levels.
        """

        def build(shape: Any, outputs: int) -> "nn.Module":
            if len(shape) != len(_IMAGE):
                raise SettingError(
                    f"problem Denoising: the source has rows of shape {tuple(shape)}, and needs images "
                    f"({', '.join(_IMAGE)}), as of ImageFolder"
                )
            module = build_model(shape, outputs)
            own: nn.Module = getattr(module, "recipe_module", module)
            _check_schedule(own)
            own.register_buffer(NOISE, _measured_noise(shape))
            # A subclass keeps the names of the weights, which a module around this one would change.
            own.__class__ = _with_losses(type(own), outputs)
            return module

        return build

    def torch_sums(
        self, output: "torch.Tensor", targets: "torch.Tensor", version: DatasetVersion, smoothing: float = 0.0
    ) -> "tuple[torch.Tensor, torch.Tensor]":
        """Sum over the rows of the loss under each row's own class, with and without gradient.

        The second sum is in float64. `smoothing` has no meaning here and is ignored.
        """
        del version, smoothing
        own = output.float().gather(1, targets[:, None])
        return own.sum(), own.detach().double().sum()

    def torch_targets(self, targets: "torch.Tensor", version: DatasetVersion) -> "torch.Tensor":
        """Numbers of the classes (rows,)."""
        del version
        return targets

    def torch_predictions(self, output: "torch.Tensor", version: DatasetVersion) -> "torch.Tensor":
        """Losses (rows, classes)."""
        del version
        return output.float()

    def reduced(self, total: float, rows: float) -> float:
        """Mean loss."""
        return total / rows


def rows_at_once(classes: int) -> int:
    """Rows whose losses are measured at once: each takes a forward pass for each class and level."""
    return max(1, _PASSES_AT_ONCE // (classes * len(LEVELS)))


def _check_schedule(module: "nn.Module") -> None:
    schedule = dict(module.named_buffers()).get(SCHEDULE)
    if schedule is None or schedule.dim() != 1 or not len(schedule):
        raise TrainingError(
            f"the model {type(module).__name__} has no noise schedule: in its __init__, call "
            f'self.register_buffer("{SCHEDULE}", DDPMScheduler().alphas_cumprod), with DDPMScheduler of diffusers'
        )
    for level in LEVELS:
        if not (schedule - level).abs().min() <= _NEAR:
            raise TrainingError(
                f"the model {type(module).__name__} has a noise schedule without a step at which {SCHEDULE} is near "
                f"{level}: it goes from {float(schedule.max()):.4g} to {float(schedule.min()):.4g} in "
                f"{len(schedule)} steps. Models are measured at {', '.join(map(str, LEVELS))}, so use a schedule from "
                "nearly 1 to nearly 0, such as that of DDPMScheduler()."
            )


def _measured_noise(shape: Any) -> "torch.Tensor":
    """The noise (levels, channels, height, width) with which the losses of all rows are measured.

    At each level its variance is exactly 1, so that a model that predicts no noise has the loss 1.
    """
    import torch

    noise = torch.randn((len(LEVELS), *shape), generator=torch.Generator().manual_seed(_SEED))
    result: torch.Tensor = noise / noise.square().mean((1, 2, 3), keepdim=True).sqrt()
    return result


def _with_losses(own: "type[nn.Module]", classes: int) -> "type[nn.Module]":
    """A subclass of a recipe's module that gives losses when it is called with images alone."""
    import torch

    class WithLosses(own):  # type: ignore[misc, valid-type]  # the base is known only here
        constant_buffers = frozenset({NOISE})  # read by training.trainers.network.fine_tuning

        def forward(
            self,
            images: torch.Tensor,
            steps: torch.Tensor | None = None,
            classes: torch.Tensor | None = None,
        ) -> Any:
            if steps is None:
                return self._losses(images)
            return super().forward(images, steps, classes)

        def _losses(self, images: torch.Tensor) -> torch.Tensor:
            # A program of torch.export is given fewer rows instead, as its graph can't depend on their number.
            most = rows_at_once(classes)
            if not self.training and not torch.compiler.is_compiling() and len(images) > most:
                return torch.cat([self._losses(part) for part in torch.split(images, most)])
            kept, steps, noise = self._drawn(images) if self.training else self._fixed(images)
            kept = kept.to(images.dtype)[:, :, None, None, None]
            noisy = kept.sqrt() * images[:, None] + (1 - kept).sqrt() * noise
            # torch.export would treat len(images) as a constant.
            levels, shape = steps.shape[1], images.shape[1:]
            each = (-1, classes, levels)
            rows = noisy[:, None].expand(*each, *shape).reshape(-1, *shape)
            wanted = noise[:, None].expand(*each, *shape).reshape(-1, *shape)
            all_classes = torch.arange(classes, device=images.device)[None, :, None]
            predicted = super().forward(
                rows,
                steps[:, None].expand(each).reshape(-1),
                all_classes.expand(images.shape[0], classes, levels).reshape(-1),
            )
            errors = (getattr(predicted, "sample", predicted) - wanted).float().square()
            result: torch.Tensor = errors.flatten(1).mean(1).reshape(each).mean(2)
            return result

        def _drawn(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            """For each row a random step (rows, 1), its value in the schedule (rows, 1), and noise (rows, 1, ...)."""
            schedule = getattr(self, SCHEDULE)
            steps = torch.randint(len(schedule), (images.shape[0], 1), device=images.device)
            return schedule[steps], steps, torch.randn_like(images)[:, None]

        def _fixed(self, images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            """The levels (rows, levels), their nearest steps, and the noise (rows, levels, ...) of all measurements."""
            rows, schedule = images.shape[0], getattr(self, SCHEDULE)
            levels = torch.tensor(LEVELS, dtype=schedule.dtype, device=images.device)
            steps = (schedule[None] - levels[:, None]).abs().argmin(1)
            noise = getattr(self, NOISE).to(images.dtype)
            return levels.expand(rows, -1), steps.expand(rows, -1), noise.expand(rows, *noise.shape)

    WithLosses.__name__ = own.__name__
    return WithLosses


OBJECTIVE = DenoisingObjective()
