"""What verification and report read from the files of XGBoost; see :class:`training.trainers.base.Inspection`."""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, cast


def model_digest(state: Mapping[str, Any], epoch: int) -> str:
    """Digest of the trees of the first `epoch` rounds; a later checkpoint holds them, too."""
    from training.trainers.xgboost.boosting import first_rounds

    return sha256(first_rounds(state["booster"].numpy().tobytes(), epoch)).hexdigest()


def importances(model: Path) -> dict[str, float]:
    """Shares of XGBoost's total gain: the sum, over the splits on a column, of how much they lower the loss."""
    from xgboost import Booster

    # Trees have one number for each column; only linear models, which are not trained here, have several.
    gains = cast("dict[str, float]", Booster(model_file=model).get_score(importance_type="total_gain"))
    total = sum(gains.values())
    return {name: gain / total for name, gain in gains.items()} if total > 0 else {}
