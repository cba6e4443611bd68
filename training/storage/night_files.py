"""The records of nights in a home: one file for each night, in `nights/<model>`.

The file of a night under way is in the folder `open` there, and that of a night that the tracking server has not
recorded yet in the folder `unsent`. A night is in one folder at a time, or for a moment in two.
"""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, unquote

from training.night_record import NightRecord
from training.storage.paths import Home
from training.storage.record_files import find_record, write_record

_OPEN, _UNSENT, _SENT = _FOLDERS = ("open", "unsent", ".")  # in the order in which a night moves


def keep_open(home: Home, night: NightRecord) -> None:
    """Write the record of a night that is under way."""
    _write(home, night, _OPEN)


def keep_unsent(home: Home, night: NightRecord) -> None:
    """Write the record of a night that has ended."""
    _write(home, night, _UNSENT)


def keep_sent(home: Home, night: NightRecord) -> None:
    """Write the record of a night that the tracking server has recorded."""
    _write(home, night, _SENT)


def open_nights(home: Home, recipe: str) -> list[NightRecord]:
    """Nights of a recipe, of any model, that no process has ended, oldest first."""
    models = [unquote(folder.name) for folder in (home.root / "nights").glob("*")]
    return [night for model in models for night in _read(home, model, _OPEN) if night.recipe == recipe]


def unsent_nights(home: Home, model: str) -> list[NightRecord]:
    """Nights of a model that the tracking server has not recorded, oldest first."""
    return list(_read(home, model, _UNSENT))


def nights_of_home(home: Home, model: str) -> list[NightRecord]:
    """All nights of a model on record in this home, oldest first."""
    by_name = {night.night: night for folder in _FOLDERS for night in _read(home, model, folder)}
    return [by_name[name] for name in sorted(by_name)]


def models_with_nights(home: Home) -> list[str]:
    """Names of the models with nights on record in this home."""
    return sorted(unquote(folder.name) for folder in (home.root / "nights").glob("*"))


def _folder(home: Home, model: str) -> Path:
    return home.root / "nights" / quote(model, safe=" ")


def _write(home: Home, night: NightRecord, where: str) -> None:
    folder, name = _folder(home, night.model), f"{night.night}.json"
    (folder / where).mkdir(parents=True, exist_ok=True)
    write_record(folder / where / name, night, night.model)
    for other in _FOLDERS:
        if other != where:
            (folder / other / name).unlink(missing_ok=True)


def _read(home: Home, model: str, where: str) -> Iterator[NightRecord]:
    for file in sorted((_folder(home, model) / where).glob("*.json")):
        if (night := find_record(file, NightRecord, model)) is not None:
            yield night
