"""The rounds of LightGBM; see :mod:`training.trainers.boosting.rounds`."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import lightgbm  # noqa: TID253 - imported by processes that train
import numpy as np

from training.problems.objectives import objective_named
from training.records import DatasetVersion
from training.settings.schema import Settings
from training.trainers.boosting.rounds import NO_PARAMETERS, Measures, Round, block_seed
from training.trainers.boosting.table_rows import WorkerRows
from training.trainers.lightgbm.network import network_parameters
from training.trainers.lightgbm.objectives import NO_METRIC, LightGBMObjective, Numbers, objective_of
from training.trainers.lightgbm.own_settings import own_settings
from training.trainers.lightgbm.text import feature_name, model_of, text_of
from training.trainers.ranks import Ranks

log = logging.getLogger("evergreen.loop")

_ENDED = (
    "round %d found no split: the training adds no more trees. If columns or rows are drawn for each tree, draw more "
    "(training.feature_fraction, training.bagging_fraction); or lower training.min_data_in_leaf."
)
_ONE_SHARE, _ANOTHER_SHARE = 0.75, 0.8  # any two shares of rows
Sums = tuple[float, float]  # of the loss and of the metric
_SEEDS = ("bagging_seed", "feature_fraction_seed", "extra_seed", "objective_seed")


@dataclass
class Growing:
    """A model that grows.

    `start` is the model that the training began with (None before the first round), and `booster` the model since then
    (None before the first new round). `learned` and `validated` have the sums of the loss and of the metric over this
    worker's rows to learn from and for validation. `ended`: a round found no split. LightGBM adds no tree in such a
    round, and later rounds are left out, so that the first n trees of each output stay those of the first n rounds.
    """

    start: lightgbm.Booster | None
    booster: lightgbm.Booster | None
    seeds: dict[str, int]
    learned: Sums
    validated: Sums
    ended: bool


@dataclass(frozen=True)
class LightGBMRounds:
    """One worker's rows and parameters; see :class:`training.trainers.boosting.rounds.Boosting`.

    `held` are the rows for validation, None if this worker has none. `network` keeps the connections to the other
    workers open as long as the object lives.
    """

    learn: lightgbm.Dataset
    held: lightgbm.Dataset | None
    inputs: tuple[Any, Any]
    targets: tuple[Numbers, Numbers]
    weights: tuple[Numbers | None, Numbers | None]
    parameters: dict[str, Any]
    seed: int
    outputs: int
    objective: LightGBMObjective
    ranks: Ranks
    network: lightgbm.Booster
    metric: str
    learning_rate: float
    device: str = "cpu"
    library: str = "LightGBM"
    version: str = lightgbm.__version__

    def model(self, content: bytes, round_number: int) -> Growing:
        """See :meth:`training.trainers.boosting.rounds.Boosting.model`."""
        start = model_of(content) if content else None
        growing = Growing(start, None, self._seeds(round_number), (0.0, 0.0), (0.0, 0.0), ended=False)
        if start is not None and start.current_iteration() < round_number:
            growing.ended = True
            growing.learned, growing.validated = self._computed(start)
        return growing

    def next_block(self, model: Growing, round_number: int) -> Growing:
        """See :meth:`training.trainers.boosting.rounds.Boosting.next_block`."""
        if model.booster is None or model.ended:
            return model
        model.seeds, share = self._seeds(round_number), self.parameters["bagging_fraction"]
        # LightGBM reseeds the sampling of columns when the seed changes, and of rows when their share changes.
        other: dict[str, float] = {name: seed ^ 1 for name, seed in model.seeds.items()}
        if share < 1:
            other["bagging_fraction"] = _ONE_SHARE if share != _ONE_SHARE else _ANOTHER_SHARE
        model.booster.reset_parameter(other)
        model.booster.reset_parameter({"bagging_fraction": share} | model.seeds)
        return model

    def advance(self, model: Growing, round_number: int) -> None:
        """Compute round `round_number` (0 is the first); all workers take part."""
        if model.ended:
            return
        if model.booster is None:
            model.booster = lightgbm.train(
                self.parameters | model.seeds,
                self.learn,
                1,
                valid_sets=None if self.held is None else [self.held],
                init_model=model.start,
                keep_training_booster=True,
            )
        else:
            # The replay check may have given the dataset another start since. The booster has a copy of its own start,
            # and would refuse to continue.
            model.booster.train_set_version = self.learn.version
            model.booster.update()
        model.ended = model.booster.current_iteration() <= round_number
        if not model.ended:
            model.learned, model.validated = self._kept(model.booster)
            return
        # Computed as for a loaded model, since LightGBM's and NumPy's exponentials differ in the last bits.
        model.learned, model.validated = self._computed(model.booster)
        if self.ranks.is_first:
            log.warning(_ENDED, round_number + 1)

    def measure(self, model: Growing, round_number: int) -> Measures:
        """Sums of loss and metric, and sum of weights: of this worker's rows to learn from, and for validation.

        Without weights, each row counts 1.
        """
        del round_number
        learned, validated = (
            float(len(targets) if weights is None else weights.sum())
            for targets, weights in zip(self.targets, self.weights, strict=True)
        )
        return *model.learned, learned, *model.validated, validated

    def combined(self, measures: Sequence[Sequence[float]]) -> Round:
        """See :meth:`training.trainers.boosting.rounds.Boosting.combined`."""
        loss, score, rows, validation_loss, validation_score, validation_rows = map(
            sum, zip(*measures, strict=True)
        )
        train = self.objective.results(loss / rows, score / rows)
        validation = self.objective.results(
            validation_loss / validation_rows, validation_score / validation_rows
        )
        return Round(*train, *validation)

    def content(self, model: Growing) -> bytes:
        """The model as text; see :func:`text_of`."""
        newest = model.booster or model.start
        # Loaded and written again: LightGBM writes a tree without splits differently when it has just grown the tree.
        return b"" if newest is None else text_of(model_of(text_of(newest)))

    def first_rounds(self, content: bytes, rounds: int) -> bytes:
        """See :func:`first_rounds`."""
        return first_rounds(content, rounds)

    def _seeds(self, round_number: int) -> dict[str, int]:
        return dict.fromkeys(_SEEDS, block_seed(self.seed, round_number))

    def _kept(self, booster: lightgbm.Booster) -> tuple[Sums, Sums]:
        """Sums over this worker's rows to learn from and for validation, from the predictions that LightGBM keeps."""
        learned = self._evaluated(booster.eval_train, self.targets[0], self.weights[0])
        return learned, (0.0, 0.0) if self.held is None else self._evaluated(
            booster.eval_valid, self.targets[1], self.weights[1]
        )

    def _evaluated(
        self, evaluate: Callable[..., list[Any]], targets: Numbers, weights: Numbers | None
    ) -> Sums:
        if self.parameters["metric"] != NO_METRIC:
            ((_, _, mean, _),) = evaluate()
            return mean * len(targets), mean * len(targets)
        sums = list[Sums]()

        def take(predicted: Numbers, rows: lightgbm.Dataset) -> tuple[str, float, bool]:
            del rows
            predictions = predicted.reshape(len(targets), self.outputs)
            sums.append(self.objective.sums(predictions, targets, weights))
            return "sums", 0.0, False

        evaluate(take)
        return sums[0]

    def _computed(self, model: lightgbm.Booster) -> tuple[Sums, Sums]:
        """The sums of :meth:`_kept` for a loaded model; the last bits may differ."""
        learned, validated = (
            self.objective.sums(self.objective.outputs(self._raw(model, inputs)), targets, weights)
            for inputs, targets, weights in zip(self.inputs, self.targets, self.weights, strict=True)
        )
        return learned, validated

    def _raw(self, model: lightgbm.Booster, rows: Any) -> Numbers:
        """Raw predictions (rows, outputs) of a model."""
        if not len(rows):
            return np.zeros((0, self.outputs))
        predictions = model.predict(
            rows, num_iteration=-1, raw_score=True, num_threads=self.parameters["num_threads"]
        )
        return np.asarray(predictions, np.float64).reshape(len(rows), self.outputs)


def first_rounds(content: bytes, rounds: int) -> bytes:
    """The model of the first `rounds` rounds, from the text of a model of at least as many."""
    model = model_of(content)
    return content if model.current_iteration() <= rounds else text_of(model, rounds)


def build_boosting(
    version: DatasetVersion, settings: Settings, rows: WorkerRows, ranks: Ranks
) -> LightGBMRounds:
    """Store this worker's rows in LightGBM's form. All workers take part."""
    assert version.table is not None
    objective = objective_of(version)
    parameters = _parameters(objective.parameters(version), settings, ranks)
    learned, held_back = rows.rows_to_learn(), rows.validation_rows()
    inputs = (learned[0], held_back[0])
    targets = (np.asarray(learned[1], np.float64), np.asarray(held_back[1], np.float64))
    # LightGBM's threads add up a metric in no fixed order, and its targets and weights are 32-bit floats.
    weights = (rows.weights_to_learn, rows.validation_weights)
    exact = weights[0] is None and all(
        np.array_equal(values, values.astype(np.float32)) for values in targets
    )
    if settings.scaling.threads_per_worker > 1 or not exact:
        parameters["metric"] = NO_METRIC
    dataset = lightgbm.Dataset(
        inputs[0],
        targets[0],
        weight=weights[0],
        feature_name=[feature_name(column.name) for column in version.table.columns],
        categorical_feature=[
            index for index, column in enumerate(version.table.columns) if column.kind == "category"
        ],
        params=parameters,
        free_raw_data=False,  # the predictions at the start of a block are computed from the rows
    )
    held = dataset.create_valid(inputs[1], targets[1], weight=weights[1]) if len(targets[1]) else None
    timeout_s = settings.failure.collective_timeout_s
    network = lightgbm.Booster(parameters | network_parameters(ranks, timeout_s), dataset)
    return LightGBMRounds(
        learn=dataset,
        held=held,
        inputs=inputs,
        targets=targets,
        weights=weights,
        parameters=parameters,
        seed=settings.seed,
        outputs=len(version.classes) if objective.per_class else 1,
        objective=objective,
        ranks=ranks,
        network=network,
        metric=objective_named(version.problem).metric,
        learning_rate=own_settings(settings).learning_rate,
    )


def _parameters(objective: dict[str, Any], settings: Settings, ranks: Ranks) -> dict[str, Any]:
    """LightGBM's parameters; `objective` has those that belong to what is minimised."""
    parameters = {
        **objective,
        **own_settings(settings).model_dump(exclude=set(NO_PARAMETERS)),
        "bagging_freq": 1,
        # Exclusive feature bundling drops a value of a row with two values in one bundle: the predictions kept in a
        # training would differ from those of the loaded model.
        "enable_bundle": False,
        "feature_pre_filter": False,  # each worker would leave out columns by its own rows
        "deterministic": True,
        "force_col_wise": True,  # otherwise LightGBM chooses by the clock, and sums in another order
        "num_threads": settings.scaling.threads_per_worker,
        "verbosity": -1,
    }
    if ranks.distributed:
        parameters |= {"tree_learner": "data", "pre_partition": True, "num_machines": ranks.world_size}
    return parameters
