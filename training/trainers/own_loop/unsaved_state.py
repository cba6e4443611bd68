"""Detection of model state that checkpoints do not hold, by comparing two models that should be in the same state.

A model may keep a counter, a list or a generator in a plain attribute, in a buffer with `persistent=False`, or in a
global variable of the recipe's file. `state_dict` holds none of these, so a resumed training starts with the values
of a new model.
"""

import hashlib
import random
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import numpy as np
import torch  # noqa: TID253 - imported by processes that train
from torch import nn  # noqa: TID253

_DEEPEST = 6  # levels of nested objects
# Further parts of a container, and larger arrays, are not compared.
_MOST_PARTS, _LARGEST_BYTES = 10_000, 1 << 26
_TORCHS_OWN = frozenset(vars(nn.Module()))
# Prefixes of the names of attributes that FSDP and DeepSpeed add.
_OF_STRATEGY = ("__composable_api_state_key", "ds_")
_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic)
_NOT_STATE = (type, FunctionType, ModuleType, nn.Module, nn.Parameter)
Globals = Mapping[str, Mapping[str, Any]]


def unsaved_differences(model: nn.Module, other: nn.Module) -> list[str]:
    """Names of the state that differs between two models of the same recipe and is not in their `state_dict`.

    A name has the module's path, the attribute or buffer and the kind of state: `encoder.calls (attribute)`.
    """
    saved = model.state_dict().keys()
    buffers = dict(other.named_buffers())
    differences = [
        f"{name} (buffer with persistent=False)"
        for name, buffer in model.named_buffers()
        if name not in saved and not _equal(buffer, buffers.get(name))
    ]
    others = dict(other.named_modules())
    for path, module in model.named_modules():
        before = vars(others[path]) if path in others else {}
        own = {
            name: value
            for name, value in vars(module).items()
            if name not in _TORCHS_OWN and not name.startswith(_OF_STRATEGY)
        }
        names = _differing(own, before)
        differences += [f"{path}.{name} (attribute)".lstrip(".") for name in names]
    return differences


def globals_of(folder: Path) -> Globals:
    """Global variables of the imported modules whose files are in `folder`, by file path relative to `folder`."""
    variables = {}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file and Path(file).is_relative_to(folder):
            names = {name: value for name, value in vars(module).items() if not name.startswith("__")}
            variables[Path(file).relative_to(folder).as_posix()] = names
    return variables


def differing_globals(variables: Globals, other: Globals) -> list[str]:
    """Names of the global variables that differ, as `recipe.py: calls (global variable)`."""
    return [
        f"{file}: {name} (global variable)"
        for file, names in variables.items()
        for name in _differing(names, other.get(file, names))
    ]


def _differing(values: Mapping[str, Any], other: Mapping[str, Any]) -> Iterator[str]:
    return (name for name, value in values.items() if not _equal(value, other.get(name)))


def _equal(value: Any, other: Any) -> bool:
    # Dicts are compared by their common keys only: they are often caches, which a new model has not filled yet.
    if isinstance(value, dict) and isinstance(other, dict):
        return all(_equal(value[key], other[key]) for key in value.keys() & other.keys())
    try:
        return value is other or bool(_value(value) == _value(other))
    except Exception:  # objects of a library that can't be inspected count as equal
        return True


def _value(value: Any, depth: int = 0, inside: tuple[int, ...] = ()) -> Any:
    """`value` in a form that can be compared; None if it is not state, such as functions and weights."""
    if isinstance(value, _PLAIN):
        return type(value).__name__, repr(value)
    if depth > _DEEPEST or id(value) in inside or isinstance(value, _NOT_STATE):
        return None
    if isinstance(value, torch.Tensor):
        return _tensor(value)
    if isinstance(value, np.ndarray):
        known = not value.dtype.hasobject and value.nbytes <= _LARGEST_BYTES
        return str(value.dtype), value.shape, _digest(value.tobytes()) if known else None
    parts = _parts(value)
    shown = [_value(part, depth + 1, (*inside, id(value))) for part in parts[:_MOST_PARTS]]
    return type(value).__name__, len(parts), shown


def _parts(value: Any) -> list[Any]:
    """The parts of a container, the state of a random generator, or the attributes of another object."""
    if isinstance(value, dict):
        return [part for pair in value.items() for part in pair]
    if isinstance(value, list | tuple | deque):
        return list(value)
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    if isinstance(value, random.Random) and not isinstance(value, random.SystemRandom):
        return [value.getstate()]
    if isinstance(value, np.random.Generator):
        return [value.bit_generator.state]
    if isinstance(value, np.random.RandomState):
        return [value.get_state(legacy=False)]
    if isinstance(value, torch.Generator):
        return [value.get_state()]
    if type(value).__module__ == "itertools":
        return [repr(value)] if type(value).__name__ == "count" else []
    return list(vars(value).items()) if hasattr(value, "__dict__") else []


def _tensor(tensor: torch.Tensor) -> Any:
    if tensor.layout is not torch.strided or tensor.is_meta or tensor.nbytes > _LARGEST_BYTES:
        return None
    words = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
    return str(tensor.dtype), tuple(tensor.shape), _digest(words.numpy().tobytes())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
