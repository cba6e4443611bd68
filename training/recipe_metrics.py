"""Metrics of TorchMetrics that a recipe adds: `Recipe(metrics={"f1": build_f1})`.

Such a metric changes no weights. It is computed on the validation rows after each epoch, over all workers, and on the
test rows when the model is compared with the champion.
"""

import logging
import math
import re
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from training.errors import SettingError, TrainingError
from training.problems import problem_named
from training.records import DatasetVersion
from training.seams import PROBLEMS, install_command
from training.settings.schema import Settings

if TYPE_CHECKING:
    import torch
    from torchmetrics import Metric

    from training.problems.base import Predictions, Problem, Targets

log = logging.getLogger("evergreen.metrics")

BuildMetric = Callable[[int], "Metric"]

_LIBRARY = "torchmetrics"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,49}")
_PREFIXES = ("champion_", "validation_")  # of Evergreen's own metrics
_BATCH_ROWS = 512


def check_declared(
    recipe: str, metrics: Mapping[str, BuildMetric], problem: "Problem", settings: Settings
) -> None:
    """Raise :class:`SettingError` for a trainer that does not compute a recipe's metrics, and for a name in use."""
    if not metrics:  # the names in use need the code of all problems
        return
    if not settings.training.COMPUTES_METRICS:
        raise SettingError(
            f"recipe {recipe}: metrics: trainer {settings.trainer} does not compute metrics of TorchMetrics; remove "
            "them, or use a trainer of neural networks, such as Torch(build_model)"
        )
    taken = _names_in_use(problem)
    for name in metrics:
        if not _NAME.fullmatch(name):
            raise SettingError(
                f"recipe {recipe}: metrics: the name {name!r} needs a letter, then up to 49 letters, digits and `_`"
            )
        if name in taken or name.startswith(_PREFIXES):
            raise SettingError(
                f"recipe {recipe}: metrics: Evergreen itself has a metric of the name {name!r}; choose another name"
            )


def check_library(recipe: str, metrics: Mapping[str, BuildMetric]) -> None:
    """Raise :class:`SettingError` if a recipe has metrics, and TorchMetrics is not installed."""
    if metrics and find_spec(_LIBRARY) is None:
        raise SettingError(
            f"recipe {recipe}: metrics: TorchMetrics is not installed; install it by `{install_command(_LIBRARY)}`"
        )


def _names_in_use(problem: "Problem") -> set[str]:
    metrics = {problem_named(name).metric for name in PROBLEMS}
    ends = {f"{problem.metric}_{end}" for end in ("low", "high")}
    return {"loss", *metrics, *ends, *problem.score_record.model_fields}


class RecipeMetrics:
    """The metrics of a recipe on one device, with the sums over the rows added so far.

    In a training with several workers, each worker adds its rows, and :meth:`values` combines the states of all
    workers by TorchMetrics' own synchronisation in the process group. Raises :class:`SettingError` if TorchMetrics is
    not installed, or a function of the recipe does not return a metric.
    """

    def __init__(
        self,
        recipe: str,
        metrics: Mapping[str, BuildMetric],
        version: DatasetVersion,
        device: "torch.device | str",
    ):
        check_library(recipe, metrics)
        self._recipe, self._version, self._problem = recipe, version, problem_named(version.problem)
        outputs = self._problem.outputs(version)
        self._rows = 0
        self._metrics = {
            name: _built(recipe, name, build, outputs).to(device) for name, build in metrics.items()
        }

    def add_outputs(self, outputs: "torch.Tensor", targets: "torch.Tensor") -> None:
        """Add rows by a network's outputs (rows, outputs)."""
        if self._metrics:
            self.add(self._problem.torch_predictions(outputs.float(), self._version), targets)

    def add(self, predictions: "torch.Tensor", targets: "torch.Tensor") -> None:
        """Add rows: predictions of :class:`training.problems.base.Problem`, and targets (rows,).

        Raises :class:`TrainingError` if a metric refuses them.
        """
        self._rows += len(targets)
        for name, metric in self._metrics.items():
            try:
                metric.update(predictions, targets)
            except (RuntimeError, TypeError, ValueError) as error:
                raise TrainingError(
                    f"recipe {self._recipe}: metric {name} refuses predictions of shape {tuple(predictions.shape)} "
                    f"and targets of shape {tuple(targets.shape)}: {error}"
                ) from error

    def values(self) -> dict[str, float]:
        """Return the finite values over the rows of all workers, by name, and remove these rows from the metrics.

        All workers call this method together.

        Raises :class:`TrainingError` for a metric whose value is not one number, and on a worker without rows: its
        empty states can't be combined with those of others.
        """
        if self._metrics and not self._rows:
            raise TrainingError(
                f"recipe {self._recipe}: metrics: there are fewer validation rows than workers; raise "
                "data.validation_share, or lower scaling.num_workers"
            )
        self._rows = 0
        values = {}
        for name, metric in self._metrics.items():
            value = _number(self._recipe, name, metric.compute())
            metric.reset()
            if math.isfinite(value):
                values[name] = value
            else:
                log.warning("metric %s is %s, and is left out", name, value)
        return values

    def of_validation(self) -> dict[str, float]:
        """The result of :meth:`values` under the names of metric points: `validation/<name>`."""
        return {f"validation/{name}": value for name, value in self.values().items()}

    def of_rows(self, predictions: "Predictions", targets: "Targets") -> dict[str, float]:
        """The finite values over rows with these predictions and targets, by name."""
        if not self._metrics:
            return {}
        import torch

        for start in range(0, len(targets), _BATCH_ROWS):
            part = slice(start, start + _BATCH_ROWS)
            # Copies: rows of a dataset are memory-mapped and read-only.
            self.add(torch.from_numpy(predictions[part].copy()), torch.from_numpy(targets[part].copy()))
        return self.values()


def _built(recipe: str, name: str, build: BuildMetric, outputs: int) -> "Metric":
    """A metric of the recipe. Raises :class:`SettingError` if the function fails or does not return a metric."""
    from torchmetrics import Metric

    try:
        metric = build(outputs)
    except Exception as error:  # the recipe's code, which may raise any exception
        raise SettingError(
            f"recipe {recipe}: metrics: the function of {name} raises {type(error).__name__}: {error}"
        ) from error
    if not isinstance(metric, Metric):
        raise SettingError(
            f"recipe {recipe}: metrics: the function of {name} returns a {type(metric).__name__}; it must return a "
            "torchmetrics.Metric"
        )
    return metric


def _number(recipe: str, name: str, value: Any) -> float:
    if getattr(value, "numel", lambda: 0)() != 1:
        raise TrainingError(
            f"recipe {recipe}: metric {name} gives no single number but a {type(value).__name__}"
            f"{tuple(getattr(value, 'shape', ()))}; choose a metric that does, such as one with average='macro'"
        )
    return float(value)
