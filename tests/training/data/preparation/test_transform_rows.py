"""A recipe's function `transform_rows` runs in Ray Data tasks, and gives the same bytes on any number of CPUs."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from small_runs import LINEAR, write_recipe

from training import libraries
from training.data import dataset
from training.data.preparation import parallel, prepare
from training.data.sources import Source
from training.data.sources.digits import Digits
from training.data.sources.table import Table
from training.errors import DataError, SettingError
from training.identity import data_fingerprint
from training.recipe import load
from training.recipe_function import recipe_function
from training.recipe_sources import RecipeRef
from training.records import DatasetVersion, ProblemName
from training.settings.schema import DataSettings
from training.storage.paths import Home

INVERT = """
def transform_rows(images):
    return 16 - images
"""
NOTES_PROCESS = """
import os
from pathlib import Path

def transform_rows(images):
    (Path({folder!r}) / str(os.getpid())).touch()
    return 16 - images
"""


def recipe_with(folder: Path, code: str) -> RecipeRef:
    """A recipe whose function `transform_rows` is in a file beside it."""
    file = Path(write_recipe(folder, LINEAR, "changed"))
    (folder / "rows.py").write_text(code)
    text = "from rows import transform_rows\n" + file.read_text()
    file.write_text(
        text.replace("build_model=build_model", "build_model=build_model, transform_rows=transform_rows")
    )
    return load(str(file))[1]


def made(
    home: Home,
    ref: RecipeRef,
    source: Source | None = None,
    with_ray: bool = False,
    problem: ProblemName = "classification",
) -> DatasetVersion:
    files, settings = (source or Digits()).fetch(home.sources), DataSettings()
    identity = dataset.fingerprint(files, settings, problem, ref.transform)
    raw = [
        prepare.write_raw(files, shard, settings, home.raw)
        for shard in prepare.plan_shards(files, settings, heavy=True)
    ]
    function = recipe_function(ref, home.run(ref.name, "0" * 64).recipe)
    folder = home.dataset(ref.name, identity)
    return prepare.make_version(
        ref.name, identity, files, raw, settings, folder, with_ray, problem=problem, function=function
    )


def files_of(version: DatasetVersion) -> dict[str, bytes]:
    root = Path(version.path)
    return {str(file.relative_to(root)): file.read_bytes() for file in root.rglob("*.parquet")}


@pytest.fixture
def cpus(ray_session: None) -> Iterator[Callable[[int], None]]:
    """A function that limits the number of CPUs on which Ray Data computes."""
    import ray.data
    from ray.data import ExecutionResources

    options = ray.data.DataContext.get_current().execution_options
    before = options.resource_limits

    def limit(number: int) -> None:
        options.resource_limits = ExecutionResources(cpu=number)

    yield limit
    options.resource_limits = before


@pytest.mark.extended
def test_any_number_of_cpus_and_threads_gives_the_same_bytes_in_ray_data_tasks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpus: Callable[[int], None]
) -> None:
    (tmp_path / "seen").mkdir()
    ref = recipe_with(tmp_path / "recipe", NOTES_PROCESS.format(folder=str(tmp_path / "seen")))
    monkeypatch.setattr(prepare, "_SHARD_ROWS", 8 * 300)
    versions = []
    for number in (1, 2):
        cpus(number)
        versions.append(made(Home(tmp_path / f"ray-{number}"), ref, with_ray=True))
    processes = {int(file.name) for file in (tmp_path / "seen").iterdir()}
    assert processes
    assert os.getpid() not in processes
    for number in (1, 4):
        monkeypatch.setattr(parallel, "available_cpus", lambda number=number: number)
        versions.append(made(Home(tmp_path / f"threads-{number}"), ref))
    first, *others = versions
    assert len(first.parts["train"]) == 6
    for other in others:
        assert files_of(first) == files_of(other)
        assert first.model_copy(update={"path": ""}) == other.model_copy(update={"path": ""})


def test_the_dataset_has_the_images_that_the_function_returns(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    version = made(home, recipe_with(tmp_path / "recipe", INVERT))
    source = Digits()
    (batch,) = source.read(source.fetch(Path()), "", range(1797))
    raw = np.stack([np.frombuffer(image, np.uint8) for image in batch["image"].to_pylist()])
    images = np.concatenate([dataset.open_columns(version, split).inputs for split in prepare.SPLITS])
    assert sorted(map(bytes, images.reshape(-1, 64))) == sorted(map(bytes, 16 - raw))
    train = dataset.open_columns(version, "train").inputs
    assert np.isclose(version.mean[0], train.mean() / 255)
    assert version.transform


def test_the_fingerprint_depends_on_the_file_of_the_function_alone(tmp_path: Path) -> None:
    ref = recipe_with(tmp_path / "recipe", INVERT)
    recipe = tmp_path / "recipe" / "changed.py"
    recipe.write_text(recipe.read_text() + "\nUNRELATED = 1\n")
    other = load(str(recipe))[1]
    assert other.digest != ref.digest
    assert other.transform == ref.transform
    (tmp_path / "recipe" / "rows.py").write_text(INVERT.replace("16", "17"))
    changed = load(str(recipe))[1]
    assert changed.transform != ref.transform
    files, settings = Digits().fetch(tmp_path), DataSettings()
    prints = {
        dataset.fingerprint(files, settings, "classification", transform)
        for transform in ("", ref.transform, changed.transform)
    }
    assert len(prints) == 3


@pytest.mark.parametrize("made_by", ["factory", "decorator"])
def test_values_that_a_factory_or_a_decorator_gets_elsewhere_count(tmp_path: Path, made_by: str) -> None:
    factory = "def less(by):\n    def transform_rows(images):\n        return by - images\n    return transform_rows\n"
    decorator = (
        "import functools\n\ndef less(by):\n"
        "    return lambda function: functools.wraps(function)(lambda images: by - function(images))\n"
    )
    folder = tmp_path / "recipe"
    code, more = (factory, "") if made_by == "factory" else (decorator, "(transform_rows)")
    digests = {recipe_with(folder, code + INVERT).transform}
    recipe = folder / "changed.py"
    text = recipe.read_text().replace("from rows import transform_rows\n", "from rows import *\n")
    for by in (16, 17):
        recipe.write_text(text.replace("=transform_rows", f"=less({by}){more}"))
        digests.add(load(str(recipe))[1].transform)
    assert len(digests) == 3


def test_another_version_of_a_library_prepares_the_rows_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    changing = recipe_with(tmp_path / "changing", "import pandas\n" + INVERT)
    file = Path(write_recipe(tmp_path / "plain"))
    file.write_text("import pandas\n" + file.read_text())
    plain = load(str(file))[1]
    files, settings = Digits().fetch(tmp_path), DataSettings()
    before = [data_fingerprint(ref, files, settings) for ref in (changing, plain)]
    monkeypatch.setattr(libraries, "_versions", lambda name: {name: "999"})
    after = [data_fingerprint(ref, files, settings) for ref in (changing, plain)]
    assert [old != new for old, new in zip(before, after, strict=True)] == [True, False]


@pytest.mark.extended
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return 1 / 0", r"failed: ZeroDivisionError: division by zero"),
        ("return images[:-1]", r"returned uint8 of shape \(\d+, 1, 8, 8\), and must return uint8 of shape"),
        ("return images / 2", r"returned float64 of shape"),
        ("return images.reshape(-1, 1, 4, 16)", r"one image of the same size for each row"),
        ("return [[1, 2], [3]]", r"returned list, which can't become a NumPy array: .* uint8 array of shape"),
        (
            "import torch; return torch.ones(len(images), 1, 8, 8, requires_grad=True)",
            r"returned Tensor, which can't become a NumPy array: .*requires grad",
        ),
        ("import os; return images + os.urandom(1)[0]", r"must not be random"),
        ("return images - images.min(axis=0)", r"must not depend on the other rows of a batch"),
        (
            "return images - images[[0, *range(len(images) - 1)]]",
            r"must not depend on the other rows of a batch",
        ),
    ],
)
@pytest.mark.parametrize("with_ray", [False, True])
@pytest.mark.usefixtures("ray_session")
def test_a_wrong_function_is_named_with_the_raw_file_and_the_first_row(
    tmp_path: Path, body: str, message: str, with_ray: bool
) -> None:
    ref = recipe_with(tmp_path / "recipe", f"def wrong(images):\n    {body}\n\ntransform_rows = wrong\n")
    home = Home(tmp_path / "home")
    with pytest.raises(SettingError, match=message) as caught:
        made(home, ref, with_ray=with_ray)
    assert f"{ref.path}: transform_rows=wrong, on the batch that begins at" in str(caught.value)
    assert "row 0 of " in str(caught.value)
    assert "raw-00000.parquet" in str(caught.value)
    assert not home.dataset(
        ref.name, dataset.fingerprint(Digits().fetch(home.sources), DataSettings())
    ).exists()


RATIO = """
def transform_rows(rows):
    rows["per_room"] = rows["area"] / rows["rooms"]
    rows["big"] = rows["area"] > 100
    return rows.drop(columns=["rooms"])
"""


def flats(folder: Path, rows: int = 400) -> Path:
    draw = np.random.default_rng(5)
    area, rooms = draw.uniform(20, 200, rows).round(1), draw.integers(1, 6, rows)
    frame = pd.DataFrame({"area": area, "rooms": rooms, "city": draw.choice(["Bern", "Genf"], rows)})
    frame.loc[::50, "city"] = None
    frame["price"] = 5000 * area + 100 * rooms
    frame.to_csv(folder / "flats.csv", index=False)
    return folder / "flats.csv"


@pytest.mark.extended
@pytest.mark.usefixtures("ray_session")
def test_the_columns_of_a_table_change_and_the_split_does_not(tmp_path: Path) -> None:
    source = Table(flats(tmp_path), target="price")
    plain = load(write_recipe(tmp_path / "plain"))[1]
    ref = recipe_with(tmp_path / "recipe", RATIO)
    before = made(Home(tmp_path / "plain-home"), plain, source, problem="regression")
    here = made(Home(tmp_path / "here"), ref, source, problem="regression")
    there = made(Home(tmp_path / "there"), ref, source, with_ray=True, problem="regression")
    assert files_of(here) == files_of(there)
    assert before.table is not None
    assert here.table is not None
    assert {column.name: column.kind for column in here.table.columns} == {
        "area": "number", "city": "category", "per_room": "number", "big": "boolean"
    }  # fmt: skip
    assert here.table.given == {"area": "number", "rooms": "number", "city": "category"}
    old, new = (dataset.open_columns(version, "train") for version in (before, here))
    assert np.array_equal(old.digests, new.digests)
    assert np.array_equal(old.targets, new.targets)
    area, rooms = old.inputs[:, 0].astype(np.float64), old.inputs[:, 1]
    names = [column.name for column in here.table.columns]
    assert np.allclose(new.inputs[:, names.index("per_room")], area / rooms, rtol=1e-6)
    assert np.array_equal(new.inputs[:, names.index("big")], area > 100)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return rows[rows.area > 50]", r"returned \d+ rows for 400"),
        ("return rows.area", r"returned Series, and must return a pandas DataFrame"),
        (
            "rows['x'] = rows.area / (rows.rooms - rows.rooms); return rows",
            r"column 'x' has inf, not a finite number",
        ),
        ("rows['x'] = [[1]] * len(rows); return rows", r"column 'x' of type list"),
        ("rows['x'] = [2**70] * len(rows); return rows", r"returned columns that a table can't have"),
        ("rows['x'] = rows.area.rank(); return rows", r"must not depend on the other rows"),
        ("rows['x'] = rows.area.shift(); return rows", r"must not depend on the other rows"),
        ("rows['x'] = rows.area.cumsum(); return rows", r"must not depend on the other rows"),
    ],
)
def test_a_wrong_function_of_a_table_is_refused(tmp_path: Path, body: str, message: str) -> None:
    ref = recipe_with(tmp_path / "recipe", f"def transform_rows(rows):\n    {body}\n")
    with pytest.raises(SettingError, match=message) as caught:
        made(Home(tmp_path / "home"), ref, Table(flats(tmp_path), target="price"), problem="regression")
    assert "transform_rows=transform_rows" in str(caught.value)


@pytest.mark.usefixtures("ray_session")
def test_a_damaged_raw_file_is_named_by_the_ray_task_that_reads_it(tmp_path: Path) -> None:
    files, settings = Digits().fetch(tmp_path), DataSettings()
    raw = [
        prepare.write_raw(files, shard, settings, tmp_path / "raw")
        for shard in prepare.plan_shards(files, settings, heavy=True)
    ]
    content = bytearray(Path(raw[1].path).read_bytes())
    content[1000] ^= 1
    Path(raw[1].path).write_bytes(content)
    plans = prepare.plan_transform(raw, files, settings, tmp_path / "staging")
    for split in prepare.SPLITS:
        (tmp_path / "staging" / split).mkdir(parents=True)
    with pytest.raises(DataError, match=rf"{raw[1].path}: damaged since it was written"):
        prepare.run_transform(plans, with_ray=True)
