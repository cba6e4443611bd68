"""Check the archive (ZIP file) of an exported program: its members, their JSON, and the pickled example inputs.

Members are read with the reader that `torch.export.load` uses. Another reader could return other bytes for a name: of
two members with the same name, Python's zipfile takes the last and torch's reader the first.
"""

import io
import json
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from pydantic import BaseModel, ValidationError

from tasks.model_formats.program.schema import Payloads, Program
from training.errors import DataError

_PROGRAM = "models/model.json"
_PAYLOADS = {
    "weights": "data/weights/model_weights_config.json",
    "constants": "data/constants/model_constants_config.json",
}
_EXAMPLE = "data/sample_inputs/model.pt"
_TENSORS = re.compile(r"data/weights/weight_[0-9]{1,6}|data/constants/tensor_[0-9]{1,6}")
_ABOUT = {"archive_format", "archive_version", "byteorder", ".data/version", ".data/serialization_id"}
_FIXED = {_PROGRAM, *_PAYLOADS.values(), _EXAMPLE, *_ABOUT}


M = TypeVar("M", bound=BaseModel)


def check_program(file: Path | BinaryIO) -> None:
    """Check an exported program; raises :class:`DataError`, with the reason, when torch must not load it."""
    from torch.export.pt2_archive import PT2ArchiveReader

    try:
        _check_members(file)
        reader = PT2ArchiveReader(str(file) if isinstance(file, Path) else file)
        names = set(reader.get_file_names())
        if unknown := sorted(name for name in names if name not in _FIXED and not _TENSORS.fullmatch(name)):
            raise DataError(f"it holds {unknown[0][:100]!r}, which no exported model needs")
        _validated(Program, reader.read_bytes(_PROGRAM), _PROGRAM)
        for folder, name in _PAYLOADS.items():
            _check_payloads(folder, _validated(Payloads, reader.read_bytes(name), name), names)
        _check_example(reader.read_bytes(_EXAMPLE))
    except (RuntimeError, AssertionError, zipfile.BadZipFile, OSError) as error:
        raise DataError(f"it is no archive that torch.export wrote ({str(error)[:200]})") from error


def _check_members(file: Path | BinaryIO) -> None:
    """Require one top folder, unique names and no compression, as torch writes: readers differ on other archives."""
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
    names = [member.filename.lower() for member in members]
    if len(set(names)) != len(names):
        raise DataError("two of its members have one name")
    if len({name.partition("/")[0] for name in names}) != 1:
        raise DataError("its members are not in one folder")
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise DataError("a member is compressed")
    if not isinstance(file, Path):
        file.seek(0)


def _validated(model: type[M], content: bytes, name: str) -> M:
    """Validate `content` against a schema, with the JSON parser that torch uses; a duplicate key is refused."""
    try:
        return model.model_validate(json.loads(content.decode(), object_pairs_hook=_refuse_duplicates))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        location = ".".join(map(str, first["loc"]))[:200]
        raise DataError(f"{name}: {location!r}: {first['msg'][:300]}") from error
    except ValueError as error:
        raise DataError(f"{name}: {str(error)[:300]}") from error


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        raise ValueError("a key comes twice")
    return fields


def _check_payloads(folder: str, payloads: Payloads, names: set[str]) -> None:
    for payload in payloads.config.values():
        if f"data/{folder}/{payload.path_name}" not in names:
            raise DataError(f"{payload.path_name} is missing among its {folder}")


def _check_example(content: bytes) -> None:
    """Check that restricted unpickling of the example inputs succeeds: else torch unpickles them unrestricted."""
    import torch

    try:
        # Without `map_location`, as torch loads the examples later: with `map_location`, a tensor of an unknown device
        # would pass here and fail there.
        example = torch.load(io.BytesIO(content), weights_only=True)
    except (pickle.UnpicklingError, ValueError, TypeError, KeyError, EOFError, RuntimeError) as error:
        raise DataError(f"its example inputs are no tensors ({str(error)[:100]})") from error
    if not isinstance(example, tuple):
        raise DataError("its example inputs are no tuple")
