"""Plan of a run: its paths, existing results, and the choices left to the machine that runs it."""

import logging
from contextlib import nullcontext
from pathlib import Path

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from small_runs import job_for, prepared, tiny_settings, write_recipe

from tasks.train import keep_plan
from training.data.sources.digits import Digits
from training.data.sources.parquet import ParquetImages
from training.errors import SettingError
from training.plan import RunPlan, choose_source, identify
from training.recipe import load
from training.records import DatasetVersion
from training.settings.overrides import resolve
from training.settings.schema import Settings
from training.storage.files import write_text
from training.storage.paths import Home
from training.supervision import launch
from training.supervision.launch import make_job


def planned(home: Home, settings: Settings | None = None, force: bool = False) -> RunPlan:
    _, ref = load("digits")
    return identify(home, ref, settings or tiny_settings(), Digits().fetch(home.sources), force)


def test_a_plan_passes_between_processes(home: Home) -> None:
    plan = planned(home)
    assert RunPlan.model_validate_json(plan.model_dump_json()) == plan
    assert plan.paths.root == home.root / "runs" / "digits" / plan.run_key[:16]
    assert (plan.first, plan.changes) == (True, ())


def test_planning_writes_nothing(home: Home) -> None:
    planned(home)
    assert list(home.root.iterdir()) == []


def test_a_prepared_dataset_is_found_by_the_plan(home: Home) -> None:
    assert planned(home).find_dataset() is None
    version = prepared(home)
    assert planned(home).find_dataset() == version
    assert planned(home, force=True).find_dataset() == version
    assert planned(home, tiny_settings(data={"test_share": 0.5})).find_dataset() is None


def test_a_forced_run_that_came_to_no_end_goes_on(home: Home) -> None:
    plain, first = planned(home), planned(home, force=True)
    assert planned(home, force=True).run_key != first.run_key  # the plan was not kept
    keep_plan(first)
    assert planned(home, force=True).run_key == first.run_key != plain.run_key
    assert planned(home, tiny_settings(seed=5), force=True).run_key != first.run_key
    write_text(first.paths.release, "{}")
    assert planned(home, force=True).run_key != first.run_key


def test_changes_name_the_recipe_s_files(home: Home, tmp_path: Path) -> None:
    path = Path(write_recipe(tmp_path / "own"))
    helper, text = path.parent / "helper.py", path.read_text()
    helper.write_text("width = 1\n")
    path.write_text("import helper\n" + text)

    def changes() -> tuple[str, ...]:
        _, ref = load(str(path))
        return identify(home, ref, tiny_settings(), Digits().fetch(home.sources)).changes

    _, ref = load(str(path))
    keep_plan(identify(home, ref, tiny_settings(), Digits().fetch(home.sources)))
    assert changes() == ()
    helper.write_text("# wider\nwidth = 2\n")
    assert changes() == ("recipe.source: helper.py changed",)
    path.write_text(text)
    assert changes() == (f"recipe.source: helper.py is gone, {path.name} changed",)
    (path.parent / "shapes.py").write_text("")
    path.write_text("import shapes\n" + text)
    assert changes() == (f"recipe.source: helper.py is gone, {path.name} changed, shapes.py is new",)


def test_the_models_name_is_the_recipes_or_as_set(home: Home) -> None:
    assert planned(home).model == "digits"
    named = planned(home, tiny_settings(tracking={"model": "numbers"}))
    assert (named.model, named.run_key) == ("numbers", planned(home).run_key)


def test_the_source_is_the_recipes_or_where_the_path_points(home: Home, tmp_path: Path) -> None:
    recipe, _ = load("digits")
    assert choose_source(recipe, tiny_settings(), home) is recipe.source
    pq.write_table(pa.table({"image": [b"x"], "label": [3]}), tmp_path / "rows.parquet")
    source = choose_source(recipe, tiny_settings(data={"path": str(tmp_path / "rows.parquet")}), home)
    assert isinstance(source, ParquetImages)
    assert source.classes == tuple("0123456789")
    with pytest.raises(SettingError, match="nowhere"):
        choose_source(recipe, tiny_settings(data={"path": str(tmp_path / "nowhere")}), home)


def test_a_network_streams_no_table(home: Home) -> None:
    for recipe, refused in (("diabetes", True), ("breast-cancer", False)):
        chosen, ref = load(recipe)
        settings = resolve(chosen.settings, {"data": {"feed": "stream"}})
        files = chosen.source.fetch(home.sources)
        with pytest.raises(SettingError, match=r"data\.feed: .*memory") if refused else nullcontext():
            identify(home, ref, settings, files)


@pytest.mark.parametrize(("memory", "warned"), [(10**12, False), (1000, True)])
def test_images_larger_than_memory_are_warned_of(
    home: Home,
    digits_version: DatasetVersion,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    memory: int,
    warned: bool,
) -> None:
    actual = psutil.virtual_memory()
    monkeypatch.setattr(psutil, "virtual_memory", lambda: actual._replace(total=memory))
    with caplog.at_level(logging.WARNING, "evergreen.launch"):
        assert job_for(home, digits_version, tiny_settings()).feed == "memory"
    assert ("data.feed=stream" in caplog.text) == warned


def test_a_chosen_feed_stays(home: Home, digits_version: DatasetVersion) -> None:
    assert job_for(home, digits_version, tiny_settings(data={"feed": "loader"})).feed == "loader"


@pytest.mark.parametrize("gpus", [0, 1, 2])
def test_gpus_that_stay_unused_are_said_with_the_remedy(
    home: Home,
    digits_version: DatasetVersion,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    gpus: int,
) -> None:
    monkeypatch.setattr(launch, "workers_with_gpus", lambda _: gpus)
    with caplog.at_level(logging.INFO, "evergreen.launch"):
        job = job_for(home, digits_version, tiny_settings(scaling={"num_workers": 2, "use_gpu": "auto"}))
    assert job.use_gpu is (gpus == 2)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert [text.partition(". ")[2] for text in warnings] == (
        ["To train on GPUs, set scaling.num_workers=1."] if gpus == 1 else []
    )


def test_more_gpus_than_there_are_are_refused(home: Home, digits_version: DatasetVersion) -> None:
    _, ref = load(write_recipe(home.root / "own"))
    settings = tiny_settings(scaling={"use_gpu": "yes", "gpus_per_worker": 1000.0})
    with pytest.raises(SettingError, match=r"scaling\.use_gpu: 1000 GPUs are needed"):
        make_job("0" * 64, home.run("plain", "0" * 64), ref, settings, digits_version)
