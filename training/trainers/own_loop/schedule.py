"""Learning rate and optimizer. The rate is a function of the step alone, so checkpoints hold no scheduler state."""

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from training.settings.network import OwnLoopSettings


def learning_rate(settings: "OwnLoopSettings", step: int, total_steps: int) -> float:
    """Learning rate of optimizer step `step` (0 for the first) out of `total_steps`.

    The rate rises linearly over the first `warmup_share` of all steps and then follows `schedule`: `constant` stays
    at the peak, `cosine` falls to 0 (Loshchilov and Hutter 2017), `one_cycle` rises over at least 30 % of all steps
    and then falls to 0 as `cosine` does (Smith 2018), `step` divides the rate by ten after 1/2 and again after 3/4 of
    the steps that follow the warm-up (He et al. 2016).
    """
    peak, schedule = settings.learning_rate, settings.schedule
    warmup = max(settings.warmup_share, 0.3) if schedule == "one_cycle" else settings.warmup_share
    rising = round(warmup * total_steps)
    if step < rising:
        return peak * (step + 1) / (rising + 1)
    done = (step - rising) / max(1, total_steps - rising)
    if schedule in ("cosine", "one_cycle"):
        return peak * 0.5 * (1 + math.cos(math.pi * done))
    if schedule == "step":
        return peak * (0.01 if done >= 0.75 else 0.1 if done >= 0.5 else 1.0)
    return peak


def build_optimizer(
    settings: "OwnLoopSettings", parameters: Iterable["nn.Parameter"], fused_sgd: bool = True
) -> "Optimizer":
    """Build the optimizer that the settings name; :func:`set_learning_rate` sets its rate before each step.

    `fused_sgd` says whether sgd may be fused, which sharded tensors do not support.
    """
    import torch

    rate, decay = settings.learning_rate, settings.weight_decay
    # `fused` makes one pass over memory instead of ten: for ResNet-18 on CPUs, a step of AdamW takes 8 ms instead of
    # 27 to 54 ms.
    if settings.optimizer == "sgd":
        return torch.optim.SGD(
            parameters, lr=rate, momentum=settings.momentum, weight_decay=decay, fused=fused_sgd or None
        )
    kind = torch.optim.AdamW if settings.optimizer == "adamw" else torch.optim.Adam
    return kind(parameters, lr=rate, weight_decay=decay, fused=True)


def set_learning_rate(optimizer: "Optimizer", rate: float) -> None:
    """Set the learning rate of all parameter groups, from the next step on."""
    for group in optimizer.param_groups:
        group["lr"] = rate
