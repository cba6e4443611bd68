"""P17-xgboost: rows per second of XGBoost's rounds inside Evergreen and under plain Ray Train."""

from importlib.util import find_spec
from pathlib import Path

from benchmarks.harness.row import Claim, Outcome, Place, Row

_ROUNDS, _WARM, _COLUMNS = 100, 10, 20
_TEST, _VALIDATION = 0.2, 0.1  # of all rows; of the others


def _table(place: Place) -> Path:
    return place.shared / "rows.parquet"


def _prepare(place: Place) -> None:
    """Write a table of random numbers and a target that depends on some of them; for the guides, in two files."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    count = place.pick(500_000, 100_000, 20_000)
    random = np.random.default_rng(0)
    x = random.standard_normal((count, _COLUMNS)).astype(np.float32)
    y = x[:, 0] * x[:, 1] + np.sin(3 * x[:, 2]) + x[:, 3] ** 2 + 0.1 * random.standard_normal(count)
    table = pa.table({f"x{number}": x[:, number] for number in range(_COLUMNS)} | {"y": y})
    pq.write_table(table, _table(place))
    learn = int(count * (1 - _TEST))
    first = int(learn * (1 - _VALIDATION))
    pq.write_table(table.slice(0, first), place.shared / "train.parquet")
    pq.write_table(table.slice(first, learn - first), place.shared / "validation.parquet")


def evergreen(place: Place) -> Outcome:
    """A: `evergreen retrain`: two workers, checkpoints, publisher, MLflow and Prefect."""
    from benchmarks.baselines.retraining import retrain
    from benchmarks.baselines.trainings import recipe_file
    from training.attempts.metrics import MetricsFile

    settings = {
        "data.path": str(_table(place)),
        "data.test_share": str(_TEST),
        "data.validation_share": str(_VALIDATION),
        "scaling.use_gpu": "no",
        "scaling.num_workers": "2",
        "scaling.threads_per_worker": "1",
        "training.rounds": str(_ROUNDS),
        "tracking.log_every_steps": str(_WARM),
    }
    run = retrain(place.own / "home", recipe_file("trees_xgboost"), settings)
    history = run.trained().history
    points = MetricsFile(run.paths.metrics).read()
    rows, seconds = history[-1].rows, points[-1].at - points[0].at
    rounds = points[-1].step - points[0].step
    rmse = history[-1].validation_loss ** 0.5
    return Outcome({"rows_per_s": rows * rounds / seconds}, {"rows": rows, "rmse": rmse})


def guides(place: Place) -> Outcome:
    """B: the guides' script: the library's own loop over the worker's shard of a Ray Dataset."""
    from benchmarks.baselines.guides_trees import train_as_guides_do
    from training.ray_cluster.cluster import ray_cluster
    from training.settings.schema import RaySettings, Settings

    files = place.shared / "train.parquet", place.shared / "validation.parquet"
    # Ray Data needs a CPU beside those of the two workers, or their shards are never read.
    with ray_cluster(Settings(ray=RaySettings(num_cpus=3))):
        done = train_as_guides_do(*files, place.own, _ROUNDS)
    seconds = done["ends"][-1] - done["ends"][_WARM - 1]
    return Outcome(
        {"rows_per_s": done["rows"] * (_ROUNDS - _WARM) / seconds},
        {name: done[name] for name in ("rows", "rmse")},
    )


ROW = Row(
    id="P17-xgboost",
    sides={"a": evergreen, "b": guides},
    claims=(
        Claim(
            "P17-xgboost",
            f"XGBoost in Evergreen / the guides' script with XGBoost on Ray Train, {_ROUNDS} rounds, 2 workers",
            of="rows_per_s",
            unit="rows/s",
            goal=0.95,
            at_least=True,
            note=f"all rounds but the first {_WARM} are timed",
        ),
    ),
    prepare=_prepare,
    close={"rows": 0.02, "rmse": 0.05},
    warm_up=False,
    unavailable=lambda _: "" if find_spec("xgboost") else "XGBoost is not installed: make setup",
)
