"""A library of boosted trees inside Evergreen and the guides' script with that library on Ray Train (P17)."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from benchmarks.harness.row import Claim, Outcome, Row, Workspace

_ROUNDS, _LOGGED, _COLUMNS = 600, 10, 20
_WARM = 10  # rounds that are not timed: a process allocates memory and starts threads in them
# In this share of the rounds, Evergreen's driver takes CPU time to check the model that it will export.
_EARLY_SHARE = 1 / 3
_TEST, _VALIDATION = 0.2, 0.1  # of all rows; of the others


def trees_row(library: str, title: str) -> Row:
    """The row of a library with a recipe `trees_<library>` and a function `guides_trees.<library>_loop`.

    Both sides use equally many rows, the same parameters, and a thread for each of two workers. The goal is for all
    rounds but the first few, because users also wait for the driver's checks, which Evergreen alone makes. A second
    line without a goal leaves out the rounds beside these checks, and shows the libraries' loops alone.
    """
    steady = _ROUNDS - int(_ROUNDS * _EARLY_SHARE)
    what = f"{title} in Evergreen / the guides' script with {title} on Ray Train, 2 workers"
    name = f"P17-{library}"
    return Row(
        id=name,
        sides={"a": _evergreen(library), "b": _guides(library)},
        claims=(
            Claim(
                name,
                f"{what}, all of {_ROUNDS} rounds but the first {_WARM}",
                of="rows_per_s",
                unit="rows/s",
                goal=0.95,
                at_least=True,
            ),
            Claim(
                f"{name}-steady",
                f"{what}, the last {steady} of {_ROUNDS} rounds",
                of="steady_rows_per_s",
                unit="rows/s",
                goal=None,
                at_least=True,
                note="without the rounds in which Evergreen's driver checks the model",
            ),
        ),
        prepare=_prepare,
        close={"rows": 0.02, "rmse": 0.05},
        packages=(library,),
        warm_up=False,
        unavailable=lambda _: (
            "" if find_spec(library) else f"{title} is not installed: make setup EXTRAS=all"
        ),
    )


def _rounds(workspace: Workspace) -> int:
    return workspace.pick(_ROUNDS, 120, 30)


def _early(workspace: Workspace) -> int:
    """The rounds that the second line leaves out."""
    return int(_rounds(workspace) * _EARLY_SHARE)


def _table(workspace: Workspace) -> Path:
    return workspace.shared / "rows.parquet"


def _prepare(workspace: Workspace) -> None:
    """Write Friedman's first function with noise, as scikit-learn makes it; for the guides, in two files."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    from sklearn.datasets import make_friedman1

    count = workspace.pick(500_000, 100_000, 20_000)
    x, y = make_friedman1(count, _COLUMNS, noise=1.0, random_state=0)
    columns = x.astype(np.float32).T
    # As many bits as the script's library reads: Evergreen would compute the metric of other targets by itself.
    target = {"y": y.astype(np.float32)}
    table = pa.table({f"x{number}": column for number, column in enumerate(columns)} | target)
    pq.write_table(table, _table(workspace))
    learn = int(count * (1 - _TEST))
    first = int(learn * (1 - _VALIDATION))
    pq.write_table(table.slice(0, first), workspace.shared / "train.parquet")
    pq.write_table(table.slice(first, learn - first), workspace.shared / "validation.parquet")


def _evergreen(library: str) -> Callable[[Workspace], Outcome]:
    """A: `evergreen retrain`: two workers, checkpoints, publisher, MLflow and Prefect."""

    def side(workspace: Workspace) -> Outcome:
        from benchmarks.baselines.retraining import retrain
        from benchmarks.baselines.trainings import recipe_file
        from training.attempts.metrics import MetricsFile

        settings = {
            "data.path": str(_table(workspace)),
            "data.test_share": str(_TEST),
            "data.validation_share": str(_VALIDATION),
            "scaling.use_gpu": "no",
            "scaling.num_workers": "2",
            "scaling.threads_per_worker": "1",
            "training.rounds": str(_rounds(workspace)),
            "tracking.log_every_steps": str(_LOGGED),
        }
        run = retrain(workspace.own / "home", recipe_file(f"trees_{library}"), settings)
        history, points = run.trained().history, MetricsFile(run.paths.metrics).read()
        rows, rmse = history[-1].rows, history[-1].validation_loss ** 0.5

        def speed(first: int) -> float:
            timed = [point for point in points if point.step >= first]
            return rows * (timed[-1].step - timed[0].step) / (timed[-1].at - timed[0].at)

        return Outcome(
            {"rows_per_s": speed(_WARM), "steady_rows_per_s": speed(_early(workspace))},
            {"rows": rows, "rmse": rmse},
        )

    return side


def _guides(library: str) -> Callable[[Workspace], Outcome]:
    """B: the guides' script: the library's own loop over the worker's shard of a Ray Dataset."""

    def side(workspace: Workspace) -> Outcome:
        from benchmarks.baselines import guides_trees
        from training.ray_cluster.cluster import ray_cluster
        from training.settings.schema import RaySettings, Settings

        files = workspace.shared / "train.parquet", workspace.shared / "validation.parquet"
        # Ray Data needs a CPU beside those of the two workers, or their shards are never read.
        with ray_cluster(Settings(ray=RaySettings(num_cpus=3))):
            done = guides_trees.train_as_guides_do(library, *files, workspace.own, _rounds(workspace))
        ends = done["ends"]

        def speed(first: int) -> float:
            return float(done["rows"] * (len(ends) - first) / (ends[-1] - ends[first - 1]))

        return Outcome(
            {"rows_per_s": speed(_WARM), "steady_rows_per_s": speed(_early(workspace))},
            {each: done[each] for each in ("rows", "rmse")},
        )

    return side
