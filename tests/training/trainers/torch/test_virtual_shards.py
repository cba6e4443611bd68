"""`training.virtual_shards`: the number of workers changes no bit of the weights."""

from typing import Any

import pytest
from crashes import crashed, history, points
from small_runs import job_for, tiny_settings, write_recipe

from training.attempts.history import read_attempts
from training.attempts.job import TrainingJob
from training.identity import ingredients
from training.recipe import load
from training.records import DatasetVersion
from training.settings.overrides import resolve
from training.settings.schema import Settings
from training.storage.paths import Home
from training.supervision.launch import launch

# Batch normalisation and dropout depend on more than one row at a time.
MODEL = (
    "nn.Sequential(nn.Conv2d(shape[0], 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), "
    "nn.Linear(8 * (shape[1] - 2) * (shape[2] - 2), classes))"
)


def settings(workers: int, **sections: Any) -> Settings:
    training = {"virtual_shards": 4, "global_batch_size": 48, "epochs": 2, "clip_norm": 1.0}
    return tiny_settings(
        training=training | sections.pop("training", {}),
        scaling={"num_workers": workers, "use_gpu": "no", "cpus_per_worker": 0.5},
        ray={"num_cpus": 4},
        **sections,
    )


Outcome = tuple[Any, ...]


def job(home: Home, version: DatasetVersion, workers: int) -> TrainingJob:
    """A training that saves a checkpoint in every step and a metric point in every third step."""
    sections = {"checkpoint": {"every_steps": 1}, "tracking": {"log_every_steps": 3, "system_metrics": False}}
    recipe = write_recipe(home.root / "own", MODEL, augmentation="shift=1")
    return job_for(home, version, settings(workers, **sections), recipe)


@pytest.fixture(scope="module")
def alone(small_version: DatasetVersion, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """The outcome of an undisturbed training in this process."""
    undisturbed = job(Home(tmp_path_factory.mktemp("alone")), small_version, 0)
    trained = launch(undisturbed)
    assert trained.world_size == 1
    return trained.weights_digest, history(trained), points(undisturbed)


@pytest.mark.extended
@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize("workers", [2, *(pytest.param(more, marks=pytest.mark.slow) for more in (1, 3, 4))])
def test_any_number_of_workers_gives_the_same_bits(
    small_version: DatasetVersion, home: Home, alone: Outcome, workers: int
) -> None:
    undisturbed = job(home, small_version, workers)
    trained = launch(undisturbed)
    assert trained.world_size == workers
    assert trained.reproducible is True, trained.reproducible_reason
    assert (trained.weights_digest, history(trained), points(undisturbed)) == alone


def test_without_shards_the_number_of_workers_is_part_of_the_run_key() -> None:
    def parts(workers: int, shards: int | None) -> dict[str, Any]:
        own = resolve(settings(workers), {"training": {"virtual_shards": shards}})
        return ingredients(load("digits")[1], own, "0" * 64, {})

    assert parts(1, 4) == parts(2, 4)
    assert parts(1, None) != parts(2, None)
    assert parts(1, 4) != parts(1, None)


@pytest.mark.extended
def test_a_crash_changes_no_bit(small_version: DatasetVersion, home: Home) -> None:
    sections = {"checkpoint": {"every_steps": 1}}
    calm, hit = (
        job_for(
            Home(home.root / name),
            small_version,
            settings(0, **sections),
            write_recipe(home.root / name, MODEL),
        )
        for name in ("calm", "hit")
    )
    crashed(hit, 3)
    assert launch(hit).weights_digest == launch(calm).weights_digest
    assert read_attempts(hit.paths)[1].first_step == 3


@pytest.mark.usefixtures("ray_session")
@pytest.mark.slow
def test_other_workers_go_on_with_a_metric_interval_that_had_begun(
    small_version: DatasetVersion, home: Home, alone: Outcome
) -> None:
    hit = job(home, small_version, 0)
    crashed(hit, 5)
    assert points(hit)[-1][0] == 3  # two steps of the next interval are done
    more = job(home, small_version, 2)
    assert more.run_key == hit.run_key
    trained = launch(more)
    assert [(attempt.first_step, attempt.world_size) for attempt in read_attempts(hit.paths)] == [
        (0, 1),
        (5, 2),
    ]
    assert (trained.weights_digest, history(trained), points(hit)) == alone


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            {"training": {"virtual_shards": 2}, "scaling": {"num_workers": 3}},
            "leave some of 3 workers without",
        ),
        ({"training": {"virtual_shards": 40}}, "have less than 2 rows"),
        ({"data": {"feed": "loader"}}, "only data.feed=memory"),
    ],
)
def test_what_can_not_work_is_refused(override: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message):
        resolve(settings(1), override)
