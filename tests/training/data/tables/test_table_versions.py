"""Dataset versions of tables: their part files, statistics and columns, and the data that preparation refuses."""

import csv
import json
import math
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_runs import prepared, prepared_from

from training.code_closure import code_digests
from training.data import columns as unpacked
from training.data.dataset import fingerprint, open_columns, transform_modules
from training.data.manifest import read_parts
from training.data.preparation import parallel, prepare
from training.data.row_digests import known_rows, rows_among
from training.data.sources.digits import Digits
from training.data.sources.table import Table
from training.data.tables import shards
from training.data.tables.encoding import encode
from training.data.tables.statistics import moments
from training.data.tables.typed_copy import forget_old_copies
from training.errors import DataError, SettingError
from training.records import DatasetVersion, ProblemName, SourceFiles, Split, TableSchema
from training.settings.schema import DataSettings
from training.storage.files import digest_json
from training.storage.paths import Home

CITIES = ("Bonn", "Köln", "Ulm")


def flats(folder: Path, rows: int = 1000, name: str = "flats.csv", **changes: Any) -> Path:
    """A table with numbers, categories, booleans, dates and missing values; `changes` replace columns."""
    random = np.random.default_rng(5)
    area = random.normal(70, 20, rows).round(2)
    columns: dict[str, Any] = {
        "area": np.where(np.arange(rows) % 50 == 7, "", area.astype(str)),
        "city": [("" if n % 40 == 3 else CITIES[n % 3]) for n in random.integers(0, 120, rows)],
        "garden": np.where(random.random(rows) < 0.3, "true", "false"),
        "sold": [f"2024-{1 + n % 12:02}-{1 + n % 28:02}" for n in random.integers(0, 300, rows)],
        "constant": ["1"] * rows,
        "price": (area * 1000 + random.normal(0, 5000, rows)).round(),
        "kind": np.where(area > 70, "large", "small"),
    } | changes
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / name).open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(columns)
        writer.writerows(zip(*columns.values(), strict=True))
    return folder / name


def regression(home: Home, file: Path, data: dict[str, Any] | None = None, **options: Any) -> DatasetVersion:
    return prepared(
        home, Table(file, **{"target": "price", "drop": ["kind"]} | options), "flats", data, "regression"
    )


def classes(home: Home, file: Path, data: dict[str, Any] | None = None, **options: Any) -> DatasetVersion:
    return prepared(home, Table(file, **{"target": "kind", "drop": ["price"]} | options), "flats", data)


def schema_of(version: DatasetVersion) -> TableSchema:
    assert version.table is not None
    return version.table


def parts_of(version: DatasetVersion, split: Split, names: list[str]) -> pa.Table:
    return pa.concat_tables(read_parts(version, split, names))


def files_of(version: DatasetVersion) -> dict[str, bytes]:
    root = Path(version.path)
    return {str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*.parquet")}


def places(version: DatasetVersion, split: Split) -> set[str]:
    return set(parts_of(version, split, ["where"])["where"].to_pylist()) if version.parts[split] else set()


def test_a_regression_has_a_target_of_numbers_and_no_classes(home: Home, tmp_path: Path) -> None:
    version = regression(home, flats(tmp_path))
    assert (version.problem, version.classes, version.shape) == ("regression", (), (5,))
    assert version.label_counts == {"train": (), "test": ()}
    assert (version.mean, version.std) == ((), ())
    assert [(column.name, column.kind) for column in schema_of(version).columns] == [
        ("area", "number"),
        ("city", "category"),
        ("garden", "boolean"),
        ("sold", "date"),
        ("constant", "number"),
    ]
    assert version.rows("train") + version.rows("test") == 1000
    # Each row is a test row with probability 0.2: within four standard deviations.
    assert abs(version.rows("test") - 200) < 4 * math.sqrt(1000 * 0.2 * 0.8)
    columns = open_columns(version, "train")
    assert (columns.inputs.dtype, columns.targets.dtype) == (np.float32, np.float64)
    assert np.array_equal(columns.targets, parts_of(version, "train", ["label"])["label"].to_numpy())


def test_every_row_arrives_with_its_values(home: Home, tmp_path: Path) -> None:
    file = flats(tmp_path)
    version = classes(home, file)
    with file.open(newline="", encoding="utf-8") as stream:
        source = {f"{file} row {n}": row for n, row in enumerate(csv.DictReader(stream), 1)}
    seen = 0
    for split in prepare.SPLITS:
        columns = open_columns(version, split)
        for number, where in enumerate(parts_of(version, split, ["where"])["where"].to_pylist()):
            row = source[where]
            expected = [
                float(row["area"] or "nan"),
                CITIES.index(row["city"]) if row["city"] else math.nan,
                row["garden"] == "true",
                (np.datetime64(row["sold"]) - np.datetime64("1970-01-01")).astype(int),
                1,
            ]
            assert np.array_equal(columns.inputs[number], np.float32(expected), equal_nan=True)
            assert version.classes[columns.targets[number]] == row["kind"]
            seen += 1
    assert seen == 1000


def test_statistics_are_numpys_over_the_train_split(home: Home, tmp_path: Path) -> None:
    version = regression(home, flats(tmp_path))
    matrix = np.asarray(
        encode(
            parts_of(version, "train", [f"feature.{column.name}" for column in schema_of(version).columns]),
            schema_of(version),
            "feature.",
        ),
        np.float64,
    )
    by_name = {column.name: (column, matrix[:, n]) for n, column in enumerate(schema_of(version).columns)}
    for name in ("area", "garden", "sold"):
        column, values = by_name[name]
        present = values[~np.isnan(values)]
        assert column.missing == len(values) - len(present)
        assert np.allclose([column.mean, column.std], [present.mean(), present.std()], rtol=1e-6)
        assert np.allclose([column.least, column.most], [present.min(), present.max()], rtol=1e-7)
    city, codes = by_name["city"]
    assert city.categories == CITIES
    assert city.counts == tuple(np.bincount(codes[~np.isnan(codes)].astype(int)))
    assert sum(city.counts) + city.missing == len(codes)
    constant, _ = by_name["constant"]
    assert (constant.mean, constant.std, constant.least, constant.most) == (1, 1, 1, 1)
    targets = open_columns(version, "train").targets
    assert math.isclose(schema_of(version).target_mean, targets.mean(), rel_tol=1e-12)
    assert math.isclose(schema_of(version).target_std, targets.std(), rel_tol=1e-9)


def test_sums_do_not_depend_on_the_order_of_the_numbers() -> None:
    values = np.random.default_rng(1).normal(size=10_001) * 10.0 ** (np.arange(10_001) % 12)
    whole = moments([values])
    assert moments([values[::-1][:4000], values[::-1][4000:]]) == whole
    assert moments([np.full(3, np.nan), np.zeros(0)]) == (0, 1, 0, 0)
    assert moments([np.full(7, 0.1)]) == (0.1, 1, 0.1, 0.1)


def test_shards_do_not_show(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = flats(tmp_path)
    whole = regression(Home(tmp_path / "whole"), file)
    monkeypatch.setattr(prepare, "_TABLE_SHARD_ROWS", 130)
    monkeypatch.setattr(shards, "_BATCH_ROWS", 37)
    sharded = regression(Home(tmp_path / "sharded"), file)
    assert len(sharded.parts["train"]) == 8
    assert sharded.table == whole.table
    for split in prepare.SPLITS:
        whole_columns, sharded_columns = (open_columns(version, split) for version in (whole, sharded))
        assert np.array_equal(whole_columns.inputs, sharded_columns.inputs, equal_nan=True)
        assert np.array_equal(whole_columns.targets, sharded_columns.targets)
        assert np.array_equal(whole_columns.digests, sharded_columns.digests)


@pytest.mark.parametrize("problem", [regression, classes])
def test_the_same_bytes_for_any_number_of_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: Any
) -> None:
    monkeypatch.setattr(prepare, "_TABLE_SHARD_ROWS", 130)
    made = []
    for cpus in (1, 5):
        monkeypatch.setattr(parallel, "available_cpus", lambda cpus=cpus: cpus)
        made.append(problem(Home(tmp_path / str(cpus)), flats(tmp_path)))
    assert files_of(made[0]) == files_of(made[1])
    assert made[0].model_copy(update={"path": ""}) == made[1].model_copy(update={"path": ""})


def on_ray(home: Home, files: SourceFiles) -> DatasetVersion:
    settings = DataSettings()
    identity = fingerprint(files, settings, "regression")
    raw = [
        prepare.write_raw(files, shard, settings, home.raw) for shard in prepare.plan_shards(files, settings)
    ]
    folder = home.dataset("flats", identity)
    return prepare.make_version(
        "flats", identity, files, raw, settings, folder, with_ray=True, problem="regression"
    )


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_ray_data_gives_the_same_bytes_and_ray_datas_own_preprocessors_the_same_statistics(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray.data
    from ray.data.preprocessors import OrdinalEncoder, StandardScaler

    monkeypatch.setattr(prepare, "_TABLE_SHARD_ROWS", 400)
    home = Home(tmp_path / "home")
    files = Table(flats(tmp_path), target="price", drop=["kind"]).fetch(home.sources)
    here = prepared_from(Home(tmp_path / "here"), files, "flats", DataSettings(), "regression")
    there = on_ray(Home(tmp_path / "ray"), files)
    assert len(there.parts["train"]) == 3
    assert files_of(here) == files_of(there)
    assert here.model_copy(update={"path": ""}) == there.model_copy(update={"path": ""})
    rows = parts_of(here, "train", ["feature.area", "feature.city"]).drop_null()
    scaler, encoder = StandardScaler(["feature.area"]), OrdinalEncoder(["feature.city"])
    train = ray.data.from_arrow(rows)
    scaler.fit(train)
    encoder.fit(train)
    area, city = (column for column in schema_of(here).columns if column.name in ("area", "city"))
    present = parts_of(here, "train", ["feature.area"]).drop_null()
    exact = moments([present["feature.area"].to_numpy()])
    assert (area.mean, area.std) == (exact.mean, exact.std)
    own = moments([rows["feature.area"].to_numpy()])
    assert math.isclose(scaler.stats_["mean(feature.area)"], own.mean, rel_tol=1e-9)
    assert math.isclose(scaler.stats_["std(feature.area)"], own.std, rel_tol=1e-9)
    codes = encoder.stats_["unique_values(feature.city)"]
    assert dict(zip(city.categories, range(len(city.categories)), strict=True)) == codes


def test_copies_of_a_row_and_rows_of_a_group_are_in_one_split(home: Home, tmp_path: Path) -> None:
    who = [f"person {n % 30}" for n in range(600)]
    version = classes(home, flats(tmp_path, 600, who=who), group="who")
    both = {
        split: {who[int(where.rpartition(" ")[2]) - 1] for where in places(version, split)}
        for split in prepare.SPLITS
    }
    assert both["train"] | both["test"] == set(who)
    assert not both["train"] & both["test"]
    for split in prepare.SPLITS:
        assert len(np.unique(open_columns(version, split).digests)) == len(both[split])
    twice = flats(tmp_path / "twice", 300)
    twice.write_text(twice.read_text() + "\n".join(twice.read_text().splitlines()[1:]) + "\n")
    version = classes(home, twice)
    test = {int(where.rpartition(" ")[2]) for where in places(version, "test")}
    assert {n + 300 if n <= 300 else n - 300 for n in test} == test
    assert schema_of(version).warnings == ()


def test_a_row_stays_in_its_split_while_the_data_grow(tmp_path: Path) -> None:
    small = classes(Home(tmp_path / "one"), flats(tmp_path / "a", 500))
    file = flats(tmp_path / "b", 500, name="more.csv")
    with file.open("a") as stream:
        stream.writelines(f"{n}.25,Ulm,true,2025-01-01,1,{n},large\n" for n in range(200))
    large = classes(Home(tmp_path / "two"), file)
    for split in prepare.SPLITS:
        assert rows_among(small, split, known_rows(large, split)).all()
        other: Split = "test" if split == "train" else "train"
        assert not rows_among(small, split, known_rows(large, other)).any()


def test_the_order_of_columns_does_not_change_the_split(tmp_path: Path) -> None:
    file = flats(tmp_path / "one")
    with file.open(newline="", encoding="utf-8") as stream:
        rows = [row[::-1] for row in csv.reader(stream)]
    (tmp_path / "two").mkdir()
    with (tmp_path / "two" / "flats.csv").open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows(rows)
    original, reordered = (
        classes(Home(tmp_path / f"home-{n}"), tmp_path / n / "flats.csv") for n in ("one", "two")
    )
    for split in prepare.SPLITS:
        assert np.array_equal(open_columns(original, split).digests, open_columns(reordered, split).digests)
        first, second = (open_columns(version, split).inputs for version in (original, reordered))
        assert np.array_equal(first, second[:, ::-1], equal_nan=True)


def test_validation_rows_of_the_source_are_marked(home: Home, tmp_path: Path) -> None:
    split = np.array(["train", "train", "val", "test"] * 100)
    version = classes(home, flats(tmp_path, 400, split=split), split="split")
    assert (version.rows("train"), version.rows("test"), version.validation_rows) == (300, 100, 100)
    columns = open_columns(version, "train")
    assert columns.validation is not None
    assert columns.validation.sum() == 100
    assert open_columns(version, "test").validation is None
    ignored = classes(home, tmp_path / "flats.csv", {"validation_split": "ignore"}, split="split")
    assert (ignored.rows("train"), ignored.validation_rows) == (200, None)


def test_subsets_of_the_rows(home: Home, tmp_path: Path) -> None:
    file = flats(tmp_path, 400, split=["train", "train", "train", "test"] * 100)
    version = classes(home, file, {"max_train_rows": 120, "max_test_rows": 50}, split="split")
    assert (version.rows("train"), version.rows("test")) == (120, 50)
    assert schema_of(version).columns[1].missing + sum(schema_of(version).columns[1].counts) == 120


@pytest.mark.parametrize(
    ("values", "names"),
    [
        (["10", "9", "2.5"], ("2.5", "9", "10")),
        (["true", "false"], ("false", "true")),
        (["b", "a", "ä"], ("a", "b", "ä")),
    ],
)
def test_classes_are_the_sorted_values_of_the_target(
    home: Home, tmp_path: Path, values: list[str], names: tuple[str, ...]
) -> None:
    version = classes(home, flats(tmp_path, 300, kind=(values * 300)[:300]))
    assert version.classes == names
    for split in prepare.SPLITS:
        counts = np.bincount(open_columns(version, split).targets, minlength=len(names))
        assert version.label_counts[split] == tuple(counts)


def test_rows_without_target_are_refused_or_left_out(home: Home, tmp_path: Path) -> None:
    kinds = ["" if n < 7 else ("a", "b")[n % 2] for n in range(300)]
    file = flats(tmp_path, 300, kind=kinds)
    with pytest.raises(DataError, match="7 of 300 rows can't be used") as caught:
        classes(home, file)
    assert f"{file} row 1: column 'kind', the target, is empty" in str(caught.value)
    (listing,) = (home.root / "refused").rglob("*.csv")
    assert listing.read_text().count("is empty") == 7
    version = classes(home, file, {"max_dropped_share": 0.03})
    assert (version.rows("train") + version.rows("test"), len(version.dropped)) == (293, 7)


@pytest.mark.parametrize(
    ("problem", "changes", "said"),
    [
        (
            "regression",
            {"price": ["cheap", "dear"] * 150},
            "holds text, such as 'cheap', and a regression predicts",
        ),
        ("regression", {"price": ["true", "false"] * 150}, "holds booleans"),
        (
            "classification",
            {"kind": ["same"] * 300},
            "is 'same' in every row; a classification needs at least 2",
        ),
        (
            "classification",
            {"kind": np.arange(300) / 7},
            r"300 distinct numbers .* Use problem=Regression\(\)",
        ),
        ("classification", {"kind": ["x"] * 299 + ["rare"]}, "rows of class rare"),
        ("regression", {"price": [""] * 299 + [""]}, "'price' has no values"),
    ],
)
def test_a_target_that_the_problem_cannot_learn(
    home: Home, tmp_path: Path, problem: ProblemName, changes: dict[str, Any], said: str
) -> None:
    file = flats(tmp_path, 300, **changes)
    make = regression if problem == "regression" else classes
    with pytest.raises(DataError, match=said):
        make(home, file)
    assert not list(home.datasets.glob("*/*"))


def test_all_targets_missing(home: Home, tmp_path: Path) -> None:
    file = flats(tmp_path, 300, price=[""] * 300)
    with pytest.raises(DataError, match="target 'price' has no values"):
        regression(home, file, types={"price": "number"})


def test_leaks_and_copies_are_warned_of_and_recorded(home: Home, tmp_path: Path) -> None:
    rows = 400
    price = np.arange(rows) * 10.0
    changes = {
        "price": price,
        "euro": price * 1.2 + 3,
        "same": price,
        "code": ["L", "S"] * 200,
        "kind": ["large", "small"] * 200,
        "noise": np.random.default_rng(0).normal(size=rows),
    }
    warnings = schema_of(regression(home, flats(tmp_path, rows, **changes))).warnings
    assert [text.partition(" the target")[0] for text in warnings] == [
        "column 'euro' has a correlation of 1.000000 with",
        "column 'same' equals",
    ]
    (leak,) = schema_of(classes(home, tmp_path / "flats.csv")).warnings
    assert "column 'code' has one value for each class of the target 'kind'" in leak
    gaps = flats(tmp_path / "gaps", rows, **changes | {"code": ["L", "S"] * 199 + ["", "S"]})
    (leak,) = schema_of(classes(home, gaps)).warnings
    assert "column 'code' has one value for each class of the target 'kind'" in leak
    split = ["train"] * 300 + ["test"] * 100
    table = [column[:300] + column[:100] for column in (list(map(str, range(0, 1200, 3))), ["a", "b"] * 200)]
    file = flats(tmp_path / "copied", rows, area=table[0], kind=table[1], split=split)
    version = prepared(
        home, Table(file, "kind", split="split", drop=["city", "garden", "sold", "price", "constant"])
    )
    (copies,) = schema_of(version).warnings
    assert copies.startswith("100 of 100 test rows equal a train row")


def test_a_column_that_numbers_the_rows_is_warned_of(home: Home, tmp_path: Path) -> None:
    rows = 400
    numbers = np.random.default_rng(3).permutation(np.arange(1000, 1000 + rows))
    changes = {"id": numbers, "thousands": numbers * 1000, "halves": numbers / 2, "year": numbers // 2}
    file = flats(tmp_path, rows, **changes)
    for version in (regression(home, file), classes(home, file)):
        (warning,) = schema_of(version).warnings
        assert warning.startswith("column 'id' has another whole number in each row of the train split")
        assert "drop=['id']" in warning
    few = flats(tmp_path / "few", 50, year=np.arange(1970, 2020))
    assert schema_of(regression(home, few)).warnings == ()


def test_the_bytes_of_wide_tables_do_not_depend_on_how_many_columns_are_read_at_once(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = regression(home, flats(tmp_path))
    monkeypatch.setattr("training.data.tables.statistics._BYTES", 1)  # one column at a time
    alone = regression(Home(tmp_path / "alone"), flats(tmp_path))
    assert (alone.table, files_of(alone)) == (version.table, files_of(version))


def test_batches_of_a_wide_table_are_smaller(tmp_path: Path) -> None:
    plan = shards.TablePlan(
        raw="", index=0, target="y", columns={}, classes=None, test_share=0.2, folder="", marked=False
    )
    assert plan.batch_rows == 65_536
    wide = plan.model_copy(update={"columns": {f"x{number}": "number" for number in range(4096)}})
    assert wide.batch_rows == 8192


def test_a_target_of_other_rows_is_no_copy(home: Home, tmp_path: Path) -> None:
    area = [*range(0, 900, 3), *range(0, 300, 3)]
    kind = ["a", "b"] * 150 + ["b", "a"] * 50
    file = flats(tmp_path, 400, area=area, kind=kind, split=["train"] * 300 + ["test"] * 100)
    version = prepared(
        home, Table(file, "kind", split="split", drop=["city", "garden", "sold", "price", "constant"])
    )
    assert schema_of(version).warnings == ()


def test_damaged_columns_are_unpacked_again(home: Home, tmp_path: Path) -> None:
    version = regression(home, flats(tmp_path))
    before = open_columns(version, "train")
    inputs = Path(version.path) / ".columns-train" / "inputs.npy"
    expected = inputs.read_bytes()
    content = bytearray(expected)
    content[-1] ^= 1
    inputs.write_bytes(content)
    after = open_columns(version, "train", check_images=False)
    assert inputs.read_bytes() == expected
    assert after.unchecked is None
    assert np.array_equal(after.read(np.array([3, 1])), before.inputs[[3, 1]], equal_nan=True)
    part = Path(version.path) / version.parts["test"][0].path
    part.write_bytes(part.read_bytes()[:-1])
    with pytest.raises(DataError, match=r"part-00000\.parquet: missing or not the bytes"):
        open_columns(version, "test")


def test_columns_of_another_schema_are_unpacked_again(home: Home, tmp_path: Path) -> None:
    version = regression(home, flats(tmp_path))
    open_columns(version, "train")
    city = schema_of(version).columns[1]
    other = city.model_copy(update={"categories": CITIES[::-1], "counts": city.counts[::-1]})
    columns = (schema_of(version).columns[0], other, *schema_of(version).columns[2:])
    changed = version.model_copy(update={"table": schema_of(version).model_copy(update={"columns": columns})})
    assert unpacked._parts_digest(changed, "train") != unpacked._parts_digest(version, "train")
    codes = open_columns(version, "train").inputs[:, 1].copy()
    assert np.array_equal(open_columns(changed, "train").inputs[:, 1], 2 - codes, equal_nan=True)


def test_what_changes_the_fingerprint(home: Home, tmp_path: Path) -> None:
    file = flats(tmp_path)

    def found(data: dict[str, Any] | None = None, problem: ProblemName = "regression", **options: Any) -> str:
        files = Table(file, **{"target": "price", "drop": ["kind"]} | options).fetch(home.sources)
        return fingerprint(files, DataSettings.model_validate(data or {}), problem)

    first = found()
    others = [
        found(types={"constant": "category"}),
        found(drop=["kind", "area"]),
        found(problem="classification"),
        found(group="garden"),
        found(time="sold"),
        found({"test_share": 0.3}),
        found({"max_train_rows": 100}),
    ]
    assert len({first, *others}) == len(others) + 1
    assert found({"validation_share": 0.2}) == first
    assert found({"test_share": 0.3}, time="sold") == found(time="sold")


def test_settings_and_problems_that_a_source_does_not_have(home: Home, tmp_path: Path) -> None:
    files = Table(flats(tmp_path), target="price").fetch(home.sources)
    for data in ({"image_size": 8}, {"channels": 1}, {"duplicates": "drop"}):
        with pytest.raises(SettingError, match=f"data.{next(iter(data))}: .*table"):
            fingerprint(files, DataSettings.model_validate(data), "regression")
    with pytest.raises(SettingError, match="a regression needs a number for each row"):
        prepared(home, Digits(), problem="regression")


def test_a_change_of_the_code_for_tables_changes_no_fingerprint_of_images(home: Home, tmp_path: Path) -> None:
    images = set(code_digests(*transform_modules(Digits().fetch(home.sources))))
    table = set(code_digests(*transform_modules(Table(flats(tmp_path), target="price").fetch(home.sources))))
    assert not any(name.startswith("training.data.tables") for name in images)
    own = {f"training.data.tables.{file.stem}" for file in Path(shards.__file__).parent.glob("[!_]*.py")}
    # They refuse rows, propose a key or read the rows for another model, and change no row.
    others = ("table_check", "key_proposal", "damaged_columns", "other_columns")
    assert own - table == {f"training.data.tables.{name}" for name in others}


@pytest.fixture
def data_folder() -> Path:
    """Folder of real tables, from the variable EVERGREEN_TEST_DATA."""
    folder = Path(os.environ.get("EVERGREEN_TEST_DATA", ""))
    if not (folder / "diamonds.csv").is_file() or not (folder / "penguins.csv").is_file():
        pytest.skip("EVERGREEN_TEST_DATA names no folder with diamonds.csv and penguins.csv")
    return folder


def test_diamonds(home: Home, data_folder: Path) -> None:
    version = prepared(home, Table(data_folder / "diamonds.csv", "price"), "diamonds", None, "regression")
    kinds = {column.name: column.kind for column in schema_of(version).columns}
    assert {name for name, kind in kinds.items() if kind == "category"} == {"cut", "color", "clarity"}
    assert len(kinds) == 9
    assert version.rows("train") + version.rows("test") == 53_940
    assert schema_of(version).warnings == ()
    columns = [open_columns(version, split) for split in prepare.SPLITS]
    assert not any(np.isnan(split_columns.inputs).any() for split_columns in columns)
    assert math.isclose(
        sum(split_columns.targets.sum() for split_columns in columns) / 53_940, 3932.799722, rel_tol=1e-9
    )
    assert not np.isin(columns[1].digests, columns[0].digests).any()


def test_penguins(home: Home, data_folder: Path) -> None:
    version = prepared(home, Table(data_folder / "penguins.csv", "species"), "penguins")
    assert version.classes == ("Adelie", "Chinstrap", "Gentoo")
    assert np.sum([version.label_counts[split] for split in prepare.SPLITS], axis=0).tolist() == [
        152,
        68,
        124,
    ]
    sex = next(column for column in schema_of(version).columns if column.name == "sex")
    assert sex.categories == ("FEMALE", "MALE")
    assert sum(column.missing for column in schema_of(version).columns) == sum(
        int(np.isnan(open_columns(version, "train").inputs[:, n]).sum()) for n in range(6)
    )


def test_part_files_are_typed(home: Home, tmp_path: Path) -> None:
    version = regression(home, flats(tmp_path))
    schema = pq.read_schema(Path(version.path) / version.parts["train"][0].path)
    assert {field.name: str(field.type) for field in schema} == {
        "feature.area": "double",
        "feature.city": "string",
        "feature.garden": "bool",
        "feature.sold": "timestamp[us]",
        "feature.constant": "double",
        "label": "double",
        "digest": "fixed_size_binary[16]",
        "source": "fixed_size_binary[16]",
        "where": "string",
    }


def test_zero_and_minus_zero_are_one_class(home: Home, tmp_path: Path) -> None:
    signs = [("0.0", "-0.0", "1")[number % 3] for number in range(300)]
    version = classes(home, flats(tmp_path, 300, kind=signs))
    assert version.classes == ("0", "1")
    counts = np.sum([version.label_counts[split] for split in prepare.SPLITS], axis=0)
    assert counts.tolist() == [200, 100]


def test_two_commands_may_forget_the_same_old_copies(tmp_path: Path) -> None:
    for turn in range(20):
        copies = [tmp_path / str(turn) / f"copy{number}" for number in range(12)]
        for copy in copies:
            (copy / "rows").mkdir(parents=True)
            os.utime(copy, (1, 1))
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(forget_old_copies, [copies[-1]] * 4))
        left = [copy for copy in copies if copy.exists()]
        assert len(left) == 3
        assert copies[-1] in left


def test_columns_unpacked_by_an_earlier_version_are_not_unpacked_again(home: Home, tmp_path: Path) -> None:
    version = regression(home, flats(tmp_path))
    open_columns(version, "train")
    file = Path(version.path) / ".columns-train" / "checksums.json"
    schema = schema_of(version).model_dump(mode="json")
    del schema["given"]  # a field that earlier versions did not have
    parts = [part.sha256 for part in version.parts["train"]]
    assert json.loads(file.read_text())["parts"] == digest_json([version.shape, parts, schema])
