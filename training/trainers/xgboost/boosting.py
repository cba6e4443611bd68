"""Boosting rounds in blocks, each a pure function of the model at its start and the number of its first round.

During a training, XGBoost keeps more state than the model: its random generator, and the columns drawn for a tree. So
the model is built again from its bytes at the start of every block of :data:`ROUNDS_PER_BLOCK` rounds, with a seed
that depends on the round, whether or not the training was interrupted. A training that resumes at the start of a
block then computes the same bits as an uninterrupted training, with and without sampling.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import xgboost  # noqa: TID253 - imported by processes that train

from training.data.dataset import Columns
from training.data.sample_order import Rows, stream_key
from training.errors import TrainingError
from training.problems.objectives import objective_named
from training.records import DatasetVersion
from training.settings.schema import Settings
from training.trainers.ranks import Ranks
from training.trainers.xgboost.objectives import XGBoostObjective, objective_of
from training.trainers.xgboost.own_settings import own_settings

ROUNDS_PER_BLOCK = 10
_BLOCK = 7  # stream of random numbers, see training.data.sample_order
_LEARN, _VALIDATE = "train", "validation"


@dataclass(frozen=True)
class Round:
    """Loss and metric (the scores) of the model after a round, over the rows of all workers."""

    train_loss: float
    train_score: float
    validation_loss: float
    validation_score: float


@dataclass(frozen=True)
class Boosting:
    """This worker's rows, and the parameters of the trees. `metric` is the name of the metric of each round."""

    learn: xgboost.DMatrix
    validate: xgboost.DMatrix
    parameters: dict[str, Any]
    seed: int
    objective: XGBoostObjective
    metric: str

    def model(self, content: bytes, round_number: int) -> xgboost.Booster:
        """Build the model of the first `round_number` rounds from its bytes, which are empty before the first round.

        `round_number` is the start of a block.
        """
        seed = int(stream_key(self.seed, round_number, _BLOCK) >> np.uint64(33))
        return xgboost.Booster(
            self.parameters | {"seed": seed},
            [self.learn, self.validate],
            model_file=bytearray(content) if content else None,
        )

    def advance(self, model: xgboost.Booster, round_number: int) -> None:
        """Compute round `round_number` (0 is the first); all workers take part."""
        model.update(self.learn, round_number)

    def evaluate(self, model: xgboost.Booster, round_number: int) -> Round:
        """Loss and metric after round `round_number`; all workers take part."""
        text = model.eval_set([(self.learn, _LEARN), (self.validate, _VALIDATE)], round_number)
        values: dict[str, dict[str, float]] = {_LEARN: {}, _VALIDATE: {}}
        for part in text.split("\t")[1:]:
            name, _, value = part.rpartition(":")
            rows, _, metric = name.partition("-")
            values[rows][metric] = float(value)
        train, validation = (self.objective.results(values[rows]) for rows in (_LEARN, _VALIDATE))
        return Round(*train, *validation)


def content_of(model: xgboost.Booster) -> bytes:
    """The model as UBJ; equal models have equal bytes."""
    return bytes(model.save_raw("ubj"))


def first_rounds(content: bytes, rounds: int) -> bytes:
    """The model of the first `rounds` rounds, from the bytes of a model with at least that many rounds."""
    model = xgboost.Booster(model_file=bytearray(content))
    return content if model.num_boosted_rounds() == rounds else content_of(model[:rounds])


def block_end(round_number: int, rounds: int) -> int:
    """The end of the block that contains round `round_number`, in a training of `rounds` rounds."""
    return min(rounds, round_number - round_number % ROUNDS_PER_BLOCK + ROUNDS_PER_BLOCK)


def device_of(ranks: Ranks) -> str:
    """The device that XGBoost computes on: `cpu`, even for a worker with a GPU, if XGBoost was built without CUDA."""
    return ranks.device.type if xgboost.build_info()["USE_CUDA"] else "cpu"


def build_boosting(
    version: DatasetVersion, settings: Settings, columns: Columns, learn: Rows, validate: Rows, ranks: Ranks
) -> Boosting:
    """Load this worker's rows: every `world_size`-th of the rows `learn` and `validate`. All workers take part.

    Raises :class:`TrainingError` if there are fewer rows to learn from, or for validation, than workers.
    """
    fewest = min(len(learn), len(validate))
    if fewest < ranks.world_size:
        raise TrainingError(
            f"scaling.num_workers: {ranks.world_size} workers need a row each to learn from and one for validation, "
            f"of {len(learn)} and {len(validate)} rows; use fewer workers or a larger data.validation_share."
        )
    objective = objective_of(version)
    device = str(ranks.device) if device_of(ranks) == "cuda" else "cpu"
    chosen = own_settings(settings).model_dump(exclude={"trainer", "rounds", "select"})
    parameters = {
        **objective.parameters(version),
        **chosen,
        "tree_method": "hist",
        "device": device,
        "nthread": settings.scaling.threads_per_worker,
    }
    mine = slice(ranks.rank, None, ranks.world_size)
    threads, bins = settings.scaling.threads_per_worker, own_settings(settings).max_bin
    return Boosting(
        # Rows to learn from are stored as histogram bins, which take less memory than a DMatrix.
        learn=xgboost.QuantileDMatrix(**_data(version, columns, learn[mine], threads), max_bin=bins),
        # Not in bins: a category that no row to learn from has would be mistaken for another category.
        validate=xgboost.DMatrix(**_data(version, columns, validate[mine], threads)),
        parameters=parameters,
        seed=settings.seed,
        objective=objective,
        metric=objective_named(version.problem).metric,
    )


def _data(version: DatasetVersion, columns: Columns, rows: Rows, threads: int) -> dict[str, Any]:
    assert version.table is not None
    return {
        "data": columns.inputs[rows],
        "label": columns.targets[rows],
        "feature_names": [column.name for column in version.table.columns],
        "feature_types": ["c" if column.kind == "category" else "q" for column in version.table.columns],
        "enable_categorical": True,
        "nthread": threads,
    }
