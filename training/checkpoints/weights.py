"""Weights of a finished training: safetensors files, written and read without pickle, and their digest."""

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors

from training.errors import DataError
from training.storage.files import canonical_json

if TYPE_CHECKING:
    import torch

# torch's names of the dtypes, by safetensors' names
DTYPE_NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E8M0": "float8_e8m0fnu", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U64": "uint64",
    "U32": "uint32", "U16": "uint16", "U8": "uint8", "BOOL": "bool", "C64": "complex64",
}  # fmt: skip
_CHUNK = 1 << 20


def weights_digest(weights: "dict[str, torch.Tensor]") -> str:
    """sha256 over name, dtype, shape and bytes of each tensor, in the order of their names."""
    import torch

    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        digest.update(canonical_json([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def digest_of_file(path: Path) -> str:
    """:func:`weights_digest` of the tensors in a safetensors file, computed without importing torch.

    Raises :class:`DataError` if the file can't be read, or is not a safetensors file.
    """
    try:
        with safetensors.safe_open(path, framework="numpy"):  # checks the header
            pass
        digest = hashlib.sha256()
        with path.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            header: dict[str, Any] = json.loads(stream.read(size))
            for name in sorted(header.keys() - {"__metadata__"}):
                entry = header[name]
                begin, end = entry["data_offsets"]
                dtype = f"torch.{DTYPE_NAMES[entry['dtype']]}"
                digest.update(canonical_json([name, dtype, entry["shape"]]).encode())
                stream.seek(8 + size + begin)
                for left in range(end - begin, 0, -_CHUNK):
                    digest.update(stream.read(min(_CHUNK, left)))
    except KeyError as error:
        raise DataError(f"weights {path}: tensors of type {error.args[0]} are not supported") from error
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise DataError(f"weights {path}: no readable safetensors file ({error})") from error
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
