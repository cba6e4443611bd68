"""What identifies a dataset version, beyond what `test_dataset.py` checks for all kinds of rows."""

from pathlib import Path
from typing import Any

import PIL
import pytest

from training.data import dataset, versions
from training.data.sources import Source
from training.data.sources.digits import Digits
from training.data.sources.folder import ImageFolder
from training.data.sources.sklearn_tables import BundledTable
from training.settings.schema import DataSettings


def of(source: Source, folder: Path, **data: Any) -> str:
    files = source.fetch(folder)
    problem = "regression" if files.kind == "table" else "classification"
    return versions.fingerprint(files, DataSettings.model_validate(data), problem)


def test_the_version_of_pillow_counts_for_images_that_it_decodes_or_resizes(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases: list[tuple[Source, dict[str, Any]]] = [
        (ImageFolder(images), {}),
        (Digits(), {"image_size": 16}),
        (Digits(), {"channels": 3}),
        (Digits(), {}),
        (BundledTable("diabetes"), {}),
    ]
    before = [of(source, tmp_path, **data) for source, data in cases]
    monkeypatch.setattr(PIL, "__version__", "99.0.0")
    after = [of(source, tmp_path, **data) for source, data in cases]
    changed = [old != new for old, new in zip(before, after, strict=True)]
    assert changed == [True, True, True, False, False]


def test_the_digits_as_they_are_keep_their_fingerprint() -> None:
    files = Digits().fetch(Path())
    assert of(Digits(), Path()) == dataset.fingerprint(files, DataSettings())
