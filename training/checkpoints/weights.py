"""Weights of a finished training: safetensors files, written and read without pickle, and their digest."""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import safetensors

from training.errors import DataError
from training.storage.files import canonical_json

if TYPE_CHECKING:
    import torch


def weights_digest(weights: "dict[str, torch.Tensor]") -> str:
    """sha256 over name, dtype, shape and bytes of each tensor, in the order of their names."""
    import torch

    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        digest.update(canonical_json([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def save_weights(weights: "dict[str, torch.Tensor]", path: Path) -> None:
    """Write tensors to a safetensors file, which holds no code: reading it unpickles nothing."""
    from safetensors.torch import save_file

    save_file({name: tensor.detach().cpu().contiguous().clone() for name, tensor in weights.items()}, path)


def load_weights(path: Path) -> "dict[str, torch.Tensor]":
    """Read the tensors of a safetensors file. Raises :class:`DataError` if it is damaged or can't be read."""
    from safetensors.torch import load_file

    try:
        loaded: dict[str, torch.Tensor] = load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        raise DataError(
            f"weights {path}: {error}. Remove {path.parent} and run again: training resumes."
        ) from error
    return loaded
