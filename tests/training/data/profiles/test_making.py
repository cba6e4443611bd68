"""Profiles that the preparation stores with a dataset: of tables, images and texts."""

from pathlib import Path

import numpy as np
import pytest
from small_runs import prepared
from small_texts import sentences, write_csv

from evergreen import Table, Text
from training.data.manifest import read_manifest
from training.data.profiles.columns import number_profile
from training.data.profiles.making import profile_of
from training.profile_records import SHARES, ColumnProfile, Profile
from training.records import DatasetVersion
from training.storage.paths import Home


def profile(version: DatasetVersion) -> Profile:
    """The profile in the manifest, which equals that of the version in memory."""
    made = read_manifest(Path(version.path), version.fingerprint).profile
    assert made is not None
    assert made == version.profile
    return made


def test_the_profile_of_a_table(home: Home, tmp_path: Path) -> None:
    lines = ["price,weight,town,fragile,at"]
    for row in range(200):
        weight = "" if row % 4 == 0 else f"{row % 100}"
        town = "Ulm" if row % 10 else "Bonn"
        lines.append(f"{row}.5,{weight},{town},{str(row % 2 == 0).lower()},2024-01-{1 + row % 28:02d}")
    (tmp_path / "table.csv").write_text("\n".join(lines) + "\n")
    source = Table(tmp_path / "table.csv", target="price", time="at")
    made = profile(prepared(home, source, "table", problem="regression"))

    assert (made.rows, made.newest, made.newest_is_date) == (200, 19_750.0, True)  # 2024-01-28
    weight, town, fragile = made.columns
    assert (weight.name, weight.kind, weight.missing) == ("weight", "number", 0.25)
    assert (weight.quantile(0.0), weight.quantile(0.5), weight.quantile(1.0)) == (1, 50, 99)
    assert (town.kind, town.categories, town.distinct) == ("category", {"Ulm": 0.9, "Bonn": 0.1}, 2)
    assert (fragile.kind, fragile.categories) == ("boolean", {"false": 0.5, "true": 0.5})
    assert made.target is not None
    assert (made.target.name, made.target.quantile(0.5)) == ("price", 100)
    assert made.classes == {}


def test_the_profile_of_images(digits_version: DatasetVersion, home: Home) -> None:
    made = profile(digits_version)
    assert (made.rows, made.shape, made.columns) == (1797, (1, 8, 8), ())
    assert sum(made.classes.values()) == 1797
    brightness, contrast = made.measures
    assert brightness.quantile(0.5) == pytest.approx(digits_version.mean[0], rel=0.02)
    assert 0.3 < contrast.quantile(0.5) < 0.45
    assert profile(prepared(home, data={"channels": 3})).measures[2].categories == {"true": 1.0}  # grey


@pytest.mark.frameworks
def test_the_profile_of_texts(home: Home, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers", reason="install the extras by: make setup EXTRAS=all")
    source = Text(write_csv(tmp_path / "texts.csv", rows=300), text="text", target="label")
    made = profile(prepared(home, source, "texts", {"max_tokens": 32}))
    tokens, characters = made.measures
    lengths = [len(text) for text, _ in sentences(300)]
    assert characters.quantile(0.0) == min(lengths)
    assert characters.quantile(1.0) == max(lengths)
    assert 5 <= tokens.quantile(0.5) <= 32
    assert made.classes == {"neg": 150, "pos": 150}


def test_the_same_rows_have_the_same_profile(digits_version: DatasetVersion) -> None:
    again = profile_of(digits_version, Path(digits_version.path))
    assert digits_version.profile == again


def test_quantiles_of_very_many_numbers_are_those_of_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = np.random.default_rng(0).normal(0, 1, 300_000)
    made = number_profile([numbers[:100_000], numbers[100_000:]], "x")
    assert (made.quantiles[0], made.quantiles[-1]) == pytest.approx((numbers.min(), numbers.max()), rel=1e-6)
    assert made.quantiles[1:-1] == pytest.approx(np.quantile(numbers, SHARES[1:-1]), abs=0.1)


def test_a_column_without_values_has_no_quantiles() -> None:
    made = number_profile([np.array([np.nan, np.nan])], "x")
    assert made == ColumnProfile(name="x", kind="number", missing=1.0)
