"""The rounds of XGBoost; see :mod:`training.trainers.boosting.rounds`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import xgboost  # noqa: TID253 - imported by processes that train

from training.problems.objectives import objective_named
from training.records import DatasetVersion
from training.settings.schema import Settings
from training.trainers.boosting.ray_shards import InputsAndTargets
from training.trainers.boosting.rounds import NO_PARAMETERS, Measures, Round, block_seed
from training.trainers.boosting.table_rows import WorkerRows
from training.trainers.ranks import Ranks
from training.trainers.row_weights import Weights
from training.trainers.xgboost.objectives import XGBoostObjective, objective_of
from training.trainers.xgboost.own_settings import own_settings

_LEARN, _VALIDATE = "train", "validation"


@dataclass(frozen=True)
class XGBoostRounds:
    """One worker's rows and parameters; see :class:`training.trainers.boosting.rounds.Boosting`."""

    learn: xgboost.DMatrix
    validate: xgboost.DMatrix
    parameters: dict[str, Any]
    seed: int
    objective: XGBoostObjective
    metric: str
    device: str
    learning_rate: float
    library: str = "XGBoost"
    version: str = xgboost.__version__

    def model(self, content: bytes, round_number: int) -> xgboost.Booster:
        """See :meth:`training.trainers.boosting.rounds.Boosting.model`."""
        return xgboost.Booster(
            self.parameters | {"seed": block_seed(self.seed, round_number)},
            [self.learn, self.validate],
            model_file=bytearray(content) if content else None,
        )

    def next_block(self, model: xgboost.Booster, round_number: int) -> xgboost.Booster:
        """See :meth:`training.trainers.boosting.rounds.Boosting.next_block`.

        On a GPU, where equal bits were not measured, the model is built again.
        """
        if self.device != "cpu":
            return self.model(content_of(model), round_number)
        seed = block_seed(self.seed, round_number)
        # Another tree method and back: as in a loaded model, the columns are then drawn by a new random generator.
        model.set_param({"tree_method": "approx", "seed": seed ^ 1})
        model.num_boosted_rounds()  # applies the parameters
        model.set_param({"tree_method": self.parameters["tree_method"], "seed": seed})
        return model

    def advance(self, model: xgboost.Booster, round_number: int) -> None:
        """Compute round `round_number` (0 is the first); all workers take part."""
        model.update(self.learn, round_number)

    def measure(self, model: xgboost.Booster, round_number: int) -> Measures:
        """Loss and metric of the rows to learn from, and of those for validation; of all workers, as XGBoost says."""
        text = model.eval_set([(self.learn, _LEARN), (self.validate, _VALIDATE)], round_number)
        values: dict[str, dict[str, float]] = {_LEARN: {}, _VALIDATE: {}}
        for part in text.split("\t")[1:]:
            name, _, value = part.rpartition(":")
            rows, _, metric = name.partition("-")
            values[rows][metric] = float(value)
        train, validation = (self.objective.results(values[rows]) for rows in (_LEARN, _VALIDATE))
        return *train, *validation

    def combined(self, measures: Sequence[Sequence[float]]) -> Round:
        """See :meth:`training.trainers.boosting.rounds.Boosting.combined`; the measures of all workers are equal."""
        return Round(*measures[0])

    def content(self, model: xgboost.Booster) -> bytes:
        """The model as UBJ; equal models have equal bytes."""
        return content_of(model)

    def first_rounds(self, content: bytes, rounds: int) -> bytes:
        """See :func:`first_rounds`."""
        return first_rounds(content, rounds)


def content_of(model: xgboost.Booster) -> bytes:
    """The model as UBJ; equal models have equal bytes."""
    return bytes(model.save_raw("ubj"))


def first_rounds(content: bytes, rounds: int) -> bytes:
    """The model of the first `rounds` rounds, from the bytes of a model with at least that many rounds."""
    model = xgboost.Booster(model_file=bytearray(content))
    return content if model.num_boosted_rounds() == rounds else content_of(model[:rounds])


def device_of(ranks: Ranks) -> str:
    """The device that XGBoost computes on: `cpu`, even for a worker with a GPU, if XGBoost was built without CUDA."""
    return ranks.device.type if xgboost.build_info()["USE_CUDA"] else "cpu"


def build_boosting(
    version: DatasetVersion, settings: Settings, rows: WorkerRows, ranks: Ranks
) -> XGBoostRounds:
    """Store this worker's rows in XGBoost's form. All workers take part."""
    objective = objective_of(version)
    device = str(ranks.device) if device_of(ranks) == "cuda" else "cpu"
    chosen = own_settings(settings).model_dump(exclude=set(NO_PARAMETERS))
    parameters = {
        **objective.parameters(version),
        **chosen,
        "tree_method": "hist",
        "device": device,
        "nthread": settings.scaling.threads_per_worker,
    }
    threads, bins = settings.scaling.threads_per_worker, own_settings(settings).max_bin
    return XGBoostRounds(
        # Rows to learn from are stored as histogram bins, which take less memory than a DMatrix.
        learn=xgboost.QuantileDMatrix(
            **_data(version, rows.rows_to_learn(), rows.weights_to_learn, threads), max_bin=bins
        ),
        # Not in bins: a category that no row to learn from has would be mistaken for another category.
        validate=xgboost.DMatrix(**_data(version, rows.validation_rows(), rows.validation_weights, threads)),
        parameters=parameters,
        seed=settings.seed,
        objective=objective,
        metric=objective_named(version.problem).metric,
        device=device_of(ranks),
        learning_rate=own_settings(settings).learning_rate,
    )


def _data(
    version: DatasetVersion, rows: InputsAndTargets, weights: Weights | None, threads: int
) -> dict[str, Any]:
    assert version.table is not None
    inputs, targets = rows
    return {
        "data": inputs,
        "label": targets,
        "weight": weights,
        "feature_names": [column.name for column in version.table.columns],
        "feature_types": ["c" if column.kind == "category" else "q" for column in version.table.columns],
        "enable_categorical": True,
        "nthread": threads,
    }
