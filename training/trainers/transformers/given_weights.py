"""Weights of a checkpoint of Transformers under the names of a model, as `from_pretrained` finds them."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch  # noqa: TID253 - imported by processes that train
from torch import nn  # noqa: TID253

from training.errors import SettingError

Weights = Mapping[str, torch.Tensor]


def own_names(module: nn.Module, weights: Weights, new_head: bool) -> tuple[Weights, frozenset[str]]:
    """Return `weights` under the tensor names of `module`, and the names of its tensors that `weights` may lack.

    If the names differ, `from_pretrained` of Transformers maps them: it knows base models, models with another head,
    tensors that share memory, and renamed tensors. A part is a submodule of the model or of its base model, such as
    its head or pooler. With `new_head`, a part that only `module` has keeps its new weights, and a part that only
    `weights` has is left out. Raises :class:`SettingError` for such parts without `new_head`.
    """
    from transformers import PreTrainedModel

    mine = module.state_dict()
    if mine.keys() == weights.keys() or not isinstance(module, PreTrainedModel):
        return weights, frozenset()
    loaded, missing, unexpected = _loaded(module, weights)
    if not loaded:
        return weights, frozenset()
    prefix = module.base_model_prefix
    theirs = {_part(name, prefix) for name in loaded.keys() | unexpected}
    parts = {_part(name, prefix) for name in mine}
    lacking = {name for name in missing if _part(name, prefix) not in theirs}
    foreign = {name for name in unexpected if _part(name, prefix) not in parts}
    if (lacking or foreign) and not new_head and missing == lacking and unexpected == foreign:
        raise SettingError(_other_head(lacking, foreign))
    return loaded | {name: weights[name] for name in unexpected - foreign}, frozenset(lacking)


def _other_head(lacking: set[str], foreign: set[str]) -> str:
    lists = [f"they lack {', '.join(sorted(lacking))}"] if lacking else []
    lists += [f"the model has no {', '.join(sorted(foreign))}"] if foreign else []
    return (
        f"training.init_from: the weights are of a model with another head: {'; '.join(lists)}. training.init_head=new "
        "starts what is lacking with new weights, and leaves out what the model does not have."
    )


def _loaded(module: Any, weights: Weights) -> tuple[dict[str, torch.Tensor], set[str], set[str]]:
    """The loaded tensors by their names in `module`; the names that `weights` lack; those that `module` lacks.

    A tensor of another shape is returned as zeros of the shape that `weights` have: its values are not used.
    """
    with _silent():
        other, info = type(module).from_pretrained(
            None,
            config=module.config,
            state_dict=dict(weights),
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    missing, unexpected = set(info["missing_keys"]), set(info["unexpected_keys"])
    tensors = other.state_dict()
    loaded = {name: tensors[name] for name in module.state_dict() if name in tensors and name not in missing}
    loaded |= {name: torch.zeros(shape) for name, shape, _ in info["mismatched_keys"]}
    return loaded, missing, unexpected & weights.keys()


def _part(name: str, prefix: str) -> tuple[str, ...]:
    """The part of a model in which a tensor lies: (`bert`, `pooler`) for `bert.pooler.dense.bias`."""
    names = name.split(".")
    return tuple(names[: 2 if prefix and names[0] == prefix else 1])


@contextmanager
def _silent() -> Iterator[None]:
    """No progress bar and no report of Transformers in the block; errors of Evergreen list what does not fit."""
    from transformers.utils import logging

    level, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bar:
            logging.enable_progress_bar()
