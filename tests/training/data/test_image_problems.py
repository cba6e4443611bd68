"""Images with classes, prepared for another problem than classification: the same rows, another identity."""

from pathlib import Path

import numpy as np
from PIL import Image
from small_runs import prepared

from evergreen import ImageFolder
from training.data.columns import open_columns
from training.data.manifest import read_manifest
from training.storage.paths import Home


def test_a_dataset_knows_its_problem_and_has_the_rows_of_a_classification(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    for name in ("class", "subject"):
        folder = tmp_path / "images" / name
        folder.mkdir(parents=True)
        for number in range(30):
            Image.fromarray(draw.integers(0, 256, (8, 8), np.uint8)).save(folder / f"{number}.png")
    home, source = Home(tmp_path / "home"), ImageFolder(tmp_path / "images")
    plain = prepared(home, source, "sorted", {}, "classification")
    other = prepared(home, source, "drawn", {}, "denoising")
    assert (plain.problem, other.problem) == ("classification", "denoising")
    assert plain.fingerprint != other.fingerprint
    # Whatever the rows: models must get the same noisy images.
    assert (other.mean, other.std) == ((0.5,), (0.5,))
    assert plain.mean != (0.5,)
    assert read_manifest(Path(other.path), other.fingerprint) == other
    assert [path.name for path in Path(other.path).parent.iterdir()] == [Path(other.path).name]
    for split in ("train", "test"):
        ours, theirs = open_columns(other, split), open_columns(plain, split)
        assert np.array_equal(ours.inputs, theirs.inputs)
        assert np.array_equal(ours.targets, theirs.targets)
    assert prepared(home, source, "drawn", {}, "denoising") == other  # found, not prepared again
