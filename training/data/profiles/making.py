"""The profile of a dataset version, computed from its part files while the dataset is prepared.

Images and texts are described by a fixed part of the rows, so that the cost does not grow with them.
"""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from training.data.images.decoding import Pixels, binary_to_numpy
from training.data.manifest import TOKENIZER
from training.data.profiles.columns import Numbers, column_profile, number_profile, shares_profile
from training.data.tables.statistics import columns_of_parts, part_columns
from training.data.tables.values import FEATURE
from training.data.text.shards import TOKENS
from training.profile_records import MEASURED_ROWS, ColumnProfile, Profile
from training.records import DatasetVersion, PartFile, TextEncoding

_GROUPS = 32  # row groups that are read of images and texts, evenly spread over all
_PIXELS = 4096  # of each channel of an image, in a grid over the whole image


def profile_of(version: DatasetVersion, folder: Path, counted: bool = False) -> Profile:
    """The profile of a version whose part files lie in `folder`, without its time and its subset.

    `counted`: the targets were counted by the preparation, so they say nothing about the source.
    """
    parts = [part for split in version.parts.values() for part in split]
    counts = [split for split in version.label_counts.values() if split]
    return Profile(
        rows=sum(part.rows for part in parts),
        columns=_columns(version, folder, parts),
        target=None if version.classes or counted else _target(version, folder, parts),
        classes=dict(zip(version.classes, map(sum, zip(*counts, strict=True)), strict=False)),
        measures=_measures(version, folder, parts),
        shape=version.shape if version.has_images else (),
    )


def _columns(version: DatasetVersion, folder: Path, parts: list[PartFile]) -> tuple[ColumnProfile, ...]:
    if version.table is None or version.has_images or version.text is not None:
        return ()
    kinds = {column.name: column.kind for column in version.table.raw.columns}
    columns = columns_of_parts(folder, parts, [f"{FEATURE}{name}" for name in kinds])
    return tuple(
        column_profile(chunks, name, kind)
        for (name, kind), (_, chunks) in zip(kinds.items(), columns, strict=True)
    )


def _target(version: DatasetVersion, folder: Path, parts: list[PartFile]) -> ColumnProfile | None:
    if version.table is None:
        return None
    targets = [np.asarray(values, np.float64) for values in part_columns(folder, parts, "label")]
    return number_profile(targets, version.table.target)


def _measures(version: DatasetVersion, folder: Path, parts: list[PartFile]) -> tuple[ColumnProfile, ...]:
    if version.has_images:
        images = [
            binary_to_numpy(rows["image"], np.uint8).reshape(-1, *version.image_shape)
            for rows in _some_rows(folder, parts, ["image"])
            if len(rows)
        ]
        return _of_images(images)
    if version.text is not None and version.table is not None:
        name = f"{FEATURE}{version.table.columns[0].name}"
        rows = list(_some_rows(folder, parts, [name, TOKENS]))
        return _of_texts(rows, name, version.text, _unknown_token(folder / TOKENIZER))
    return ()


def _some_rows(folder: Path, parts: list[PartFile], columns: list[str]) -> Iterator[pa.Table]:
    """The first rows of some row groups, which are spread evenly over all part files: at most MEASURED_ROWS rows."""
    groups = [
        (part, number)
        for part in parts
        for number in range(pq.read_metadata(folder / part.path).num_row_groups)
    ]
    chosen = [groups[at] for at in np.unique(np.linspace(0, len(groups) - 1, _GROUPS).astype(int)).tolist()]
    most = MEASURED_ROWS // len(chosen)
    for part, number in chosen:
        with pq.ParquetFile(folder / part.path) as file:
            yield file.read_row_group(number, columns=columns).slice(0, most)


def _of_images(groups: list[Pixels]) -> tuple[ColumnProfile, ...]:
    """Brightness (mean of pixel/255), contrast (its standard deviation) and share of grey images."""
    brightness, contrast, grey = [], [], 0
    for images in groups:
        step = max(1, int(np.sqrt(images.shape[2] * images.shape[3] / _PIXELS)))
        pixels = images[:, :, ::step, ::step]
        flat = pixels.reshape(len(pixels), -1)
        brightness.append(flat.mean(axis=1, dtype=np.float64) / 255)
        contrast.append(flat.std(axis=1, dtype=np.float32).astype(np.float64) / 255)
        grey += int((pixels == pixels[:, :1]).all(axis=(1, 2, 3)).sum())
    measures = (number_profile(brightness, "brightness"), number_profile(contrast, "contrast"))
    if groups and groups[0].shape[1] == 1:
        return measures
    rows = sum(map(len, groups))
    counts = Counter({value: count for value, count in (("true", grey), ("false", rows - grey)) if count})
    return (*measures, shares_profile(counts, 0, "grey", "boolean"))


def _of_texts(
    rows: list[pa.Table], name: str, text: TextEncoding, unknown: int | None
) -> tuple[ColumnProfile, ...]:
    """Tokens of each text (cut as the model's are), characters, and the share of its tokens that are unknown."""
    tokens: list[Numbers] = []
    shares: list[Numbers] = []
    characters: list[Numbers] = []
    for table in rows:
        ids = binary_to_numpy(table[TOKENS], np.dtype("<i4")).reshape(-1, text.length)
        used = (ids != text.padding).sum(axis=1).astype(np.float64)
        tokens.append(used)
        characters.append(np.asarray(pc.utf8_length(table[name]), np.float64))
        if unknown is not None:
            shares.append((ids == unknown).sum(axis=1) / np.maximum(used, 1))
    measures = (number_profile(tokens, "tokens"), number_profile(characters, "characters"))
    return (*measures, number_profile(shares, "unknown tokens")) if shares else measures


def _unknown_token(tokenizer: Path) -> int | None:
    """The id that a tokenizer gives to what it does not know; None if it knows every text."""
    model: dict[str, Any] = json.loads(tokenizer.read_text(encoding="utf-8"))["model"]
    if model.get("unk_id") is not None:
        return int(model["unk_id"])
    vocabulary, token = model.get("vocab"), model.get("unk_token")
    return vocabulary.get(token) if isinstance(vocabulary, dict) and token is not None else None
