"""What could not be finished is refused before the first step."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from small_runs import write_recipe

from flows.retrain import SettingsForm, retrain
from tasks import preflight
from training.errors import DataError, SettingError, TrainingError
from training.paths import Home
from training.plan import RunPlan

pytestmark = pytest.mark.usefixtures("prefect_harness")

SETTINGS: dict[str, Any] = {
    "scaling": {"num_workers": 0, "use_gpu": "no"},
    "training": {"epochs": 1},
    "tracking": {"system_metrics": False},
    "gate": {"floor": 0.0},
    "data": {"max_train_rows": 300, "max_test_rows": 100},
}


def run(recipe: str, **data: Any) -> Any:
    form = SETTINGS | {"data": SETTINGS["data"] | data}
    return retrain(recipe, SettingsForm.model_validate(form))


def test_a_champion_of_another_shape_is_refused_before_training(home: Home, tmp_path: Path) -> None:
    recipe = write_recipe(tmp_path)
    assert run(recipe).alias == "champion"
    with pytest.raises(SettingError, match=r"takes images of \(1, 8, 8\).*the data are \(1, 12, 12\)"):
        run(recipe, image_size=12)
    assert len(list(home.runs("plain").glob("*/attempts.jsonl"))) == 1


def test_a_model_that_can_not_be_exported_is_refused_before_training(home: Home, tmp_path: Path) -> None:
    model = (
        "type('Moody', (nn.Linear,), {'forward': lambda self, x: nn.Linear.forward(self, x.flatten(1)) "
        "* (1 if x.sum() > 0 else 2)})(64, classes)"
    )
    with pytest.raises(TrainingError, match="its model can't be exported"):
        run(write_recipe(tmp_path, model, name="moody"))
    assert not list(home.runs("moody").glob("*/attempts.jsonl"))


def test_a_preparation_that_fails_waits_for_what_is_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that ends while a thread imports torch may crash, and lose its exit status by that."""
    loaded: list[bool] = []

    def load(_plan: RunPlan) -> None:
        time.sleep(0.3)
        loaded.append(True)

    monkeypatch.setattr(preflight, "_load", load)
    plan = cast(RunPlan, SimpleNamespace(first=True))
    with pytest.raises(DataError), preflight.preflight_loading(plan):
        raise DataError("a row breaks a rule")
    assert loaded == [True]
