"""Find the tokenizer that a recipe names: a file, a folder that has one, or a name on Hugging Face's hub."""

import re
from pathlib import Path

from training.data.manifest import TOKENIZER
from training.errors import DataError, SettingError
from training.storage.given_paths import expanded

_HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
_MOST_BYTES = 256 << 20


def find_tokenizer(name: str | Path) -> str:
    """The JSON of a tokenizer.

    Raises :class:`SettingError` if there is none at the path, or the hub can't be reached, and :class:`DataError` if
    the file is not UTF-8.
    """
    path = expanded(name, "Text(tokenizer=...)")
    file = path / TOKENIZER if path.is_dir() else path
    if not file.is_file():
        if path.exists() or isinstance(name, Path) or not _HUB_NAME.fullmatch(name) or name.endswith(".json"):
            raise SettingError(
                f"Text(tokenizer={str(name)!r}): no file {file}. Give a tokenizer.json, a folder that has one, or a "
                "name on Hugging Face's hub."
            )
        return _from_hub(name)
    if file.stat().st_size > _MOST_BYTES:
        raise DataError(
            f"{file}: has more than {_MOST_BYTES >> 20} MiB, so it is no tokenizer. Give another file."
        )
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: is not UTF-8, so it is no tokenizer.json. Give another file.") from error


def _from_hub(name: str) -> str:
    from tokenizers import Tokenizer

    try:
        return str(Tokenizer.from_pretrained(name).to_str())
    except Exception as error:  # the library raises plain exceptions
        raise SettingError(
            f"Text(tokenizer={name!r}): no such path beside the recipe, and Hugging Face's hub gave no tokenizer of "
            f"this name ({type(error).__name__}). Download its tokenizer.json where the hub can be reached, put the "
            "file beside the recipe, and give its path."
        ) from error
