"""The contract of a source, for `npz.py`. A test file of the product."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

import numpy as np
from source_contract import Change, SourceContract

from training.data.sources import Source
from training.seams import SOURCES, part_named


class TestNpz(SourceContract):
    kind: ClassVar[str] = "npz"
    rows: ClassVar[dict[str, int]] = {"": 12}
    needed: ClassVar[tuple[str, ...]] = (".", "images.npz")

    def write(self, folder: Path, changed: int = 0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        images = np.arange(12 * 4 * 4 * 3, dtype=np.int64).astype(np.uint8).reshape(12, 4, 4, 3)
        images[3, 0, 0, 0] += changed
        labels = np.array(["cat", "dog", "owl"] * 4)
        np.savez(folder / "images.npz", images=images, labels=labels)

    def source(self, folder: Path) -> Source:
        source: Source = part_named(SOURCES, "npz")(folder / "images.npz")
        return source

    def changes(self) -> Sequence[Change]:
        return [lambda folder: self.write(folder, changed=1)]
