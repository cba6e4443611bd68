"""How much each column of a table contributes to a model, as far as its file says."""

from collections.abc import Callable
from pathlib import Path
from typing import cast

from training.settings.schema import TrainerName


def importances(trainer: TrainerName, model: Path) -> dict[str, float]:
    """Share of each column in what all splits of a tree model gained; empty for models without splits."""
    read = _READERS.get(trainer)
    return read(model) if read is not None else {}


def _of_trees(model: Path) -> dict[str, float]:
    """Shares of XGBoost's total gain: the sum, over the splits on a column, of how much they lower the loss."""
    from xgboost import Booster

    # Trees have one number for each column; only linear models, which are not trained here, have several.
    gains = cast("dict[str, float]", Booster(model_file=model).get_score(importance_type="total_gain"))
    total = sum(gains.values())
    return {name: gain / total for name, gain in gains.items()} if total > 0 else {}


_READERS: dict[TrainerName, Callable[[Path], dict[str, float]]] = {"xgboost": _of_trees}
