"""Initial weights of a training: the values of the setting `training.init_from`, and the weights that these refer to.

The setting is `champion`, `version:7`, the path of a safetensors file, that of a folder with `model.safetensors`, as
`save_pretrained` of Transformers writes it, or the name of published weights: `hub:google/bert_uncased_L-2_H-128_A-2`
on Hugging Face's hub, `torchvision:ResNet18_Weights.IMAGENET1K_V1`. Planning resolves the setting once, to the
digest of the weights. The digest is an ingredient of the run key, the setting is not: the same weights under another
name give the same run key.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pydantic import Field

from training.errors import SettingError
from training.record_base import Record

CHAMPION = "champion"
_VERSION = re.compile(r"version:([1-9][0-9]*)")
_PUBLISHED = re.compile(
    r"hub:(?P<repository>[\w.-]+/[\w.-]+)(@(?P<revision>[\w.-]+))?|torchvision:(?P<weights>\w+\.\w+)"
)
_SUFFIX = ".safetensors"
_IN_FOLDER = "model.safetensors"
_PICKLES = (".pt", ".pth", ".bin", ".ckpt", ".pkl", ".pickle")
_CONVERT = (
    'python -c "import torch; from safetensors.torch import save_file; save_file({{name: tensor.contiguous().clone() '
    "for name, tensor in torch.load('{file}', weights_only=True).items()}}, '{target}')\""
)


def checked_reference(given: object) -> object:
    """Check a value of `training.init_from`; returns the value as text, or None. Raises ValueError if it is not valid.

    Files that are read by unpickling, which could run code, are refused; the error has the command that converts them.
    """
    text = _path_text(given) if isinstance(given, Path) else given
    if text is None or (isinstance(text, str) and (text == CHAMPION or _VERSION.fullmatch(text))):
        return text
    if isinstance(text, str) and published_in(text) is not None:
        return text
    if isinstance(text, str) and text.endswith(_PICKLES):
        raise ValueError(_pickled(text))
    if isinstance(text, str) and is_path(text):
        return text
    raise ValueError(
        f"name the weights as champion, as version:N (the number of a registered version), by the path of a "
        f"{_SUFFIX} file, or of a folder with {_IN_FOLDER} (./NAME if it is beside the recipe), or as published "
        "weights: hub:OWNER/NAME or torchvision:ResNet18_Weights.IMAGENET1K_V1"
    )


def is_version(reference: str) -> bool:
    """Whether a value of `training.init_from` names a registered version by its number."""
    return _VERSION.fullmatch(reference) is not None


def is_path(reference: str) -> bool:
    """Whether a value of `training.init_from` is the path of a file or folder."""
    return (reference.endswith(_SUFFIX) or "/" in reference) and published_in(reference) is None


class Published(NamedTuple):
    """Published weights: a repository on Hugging Face's hub and its revision, or the name of weights of TorchVision.

    On the hub, `weights` is empty, and `revision` may be. For TorchVision, `repository` and `revision` are empty.
    """

    repository: str
    revision: str
    weights: str


def published_in(reference: str) -> Published | None:
    """The published weights that a value of `training.init_from` names; None for another value."""
    match = _PUBLISHED.fullmatch(reference)
    return None if match is None else Published(**match.groupdict(default=""))


def weights_file(path: Path) -> Path:
    """The safetensors file at the path in `training.init_from`, which is that file or a folder that has it.

    Raises :class:`SettingError` if there is none.
    """
    if not path.is_dir():
        if path.is_file() and path.suffix == _SUFFIX:
            return path
        kind = (
            "no such file"
            if path.suffix == _SUFFIX
            else f"no folder with {_IN_FOLDER}; weights on Hugging Face's hub are hub:OWNER/NAME"
        )
        raise SettingError(f"training.init_from: {path}: {kind}")
    file = path / _IN_FOLDER
    if file.is_file():
        return file
    if (path / f"{_IN_FOLDER}.index.json").is_file():
        raise SettingError(
            f"training.init_from: {path}: the weights are in several files. Write them to one, as by "
            'save_pretrained(folder, max_shard_size="100GB").'
        )
    pickles = sorted(entry for entry in path.iterdir() if entry.name.endswith(_PICKLES))
    if pickles:
        raise SettingError(f"training.init_from: {_pickled(str(pickles[0]))}")
    raise SettingError(
        f"training.init_from: {path}: the folder has no {_IN_FOLDER}; give the path of a file."
    )


def _path_text(given: Path) -> str:
    text = str(given)
    return text if is_path(text) or text.endswith(_PICKLES) else f"./{text}"


def _pickled(text: str) -> str:
    target = str(Path(text).with_suffix(_SUFFIX))
    return (
        f"{text} is read by unpickling, which could run code. Convert a state_dict once by "
        f"`{_CONVERT.format(file=text, target=target)}` and give {target}"
    )


def version_in(reference: str) -> str | None:
    """The number N of `version:N`; None for another value of `training.init_from`."""
    match = _VERSION.fullmatch(reference)
    return match[1] if match else None


class InitialWeights(Record):
    """Initial weights of a training, as resolved when the run was planned."""

    reference: str = Field(
        description="champion, version:N, a name of published weights, or the absolute path of a file or folder"
    )
    model: str = Field("", description="name of the registered model; empty: the weights of a file")
    version: str = Field("", description="number of the registered version; empty: the weights of a file")
    digest: str = Field(description="sha256 over names, dtypes, shapes and bytes of all tensors")

    @property
    def name(self) -> str:
        """The version or the file as readable text."""
        return f"{self.model} version {self.version}" if self.version else self.reference

    @property
    def words(self) -> str:
        """The version or the file, and the first 16 digits of the digest, as readable text."""
        return f"{self.name}, weights {self.digest[:16]}"


@dataclass(frozen=True)
class Start:
    """The weights to which a value of `training.init_from` refers at present.

    `model` is the name of the registered model, empty for a file. `weights` is None if there is no champion yet, and if
    the version or file is missing; in the latter case, `missing` is the error message. The other fields describe the
    champion's own run: `inputs` is the digest of the ingredients of its run key without initial weights and nonce
    (:func:`training.identity.inputs_digest`), `before` its initial weights, and `forced` its nonce if it was forced.
    """

    reference: str
    model: str = ""
    weights: InitialWeights | None = None
    missing: str = ""
    inputs: str = ""
    before: InitialWeights | None = None
    forced: str | None = None
