"""The section `training` is that of the recipe's trainer, in overrides, messages and stored plans."""

import pytest

from training.errors import SettingError
from training.settings.overrides import describe, resolve
from training.settings.schema import Settings
from training.trainers.torch.settings import TrainingSettings
from training.trainers.xgboost.own_settings import own_settings
from training.trainers.xgboost.settings import XGBoostSettings

BOOSTED = Settings(training=XGBoostSettings(rounds=50))


def test_overrides_keep_the_trainer() -> None:
    resolved = resolve(BOOSTED, {"training": {"max_depth": 3}})
    assert (resolved.trainer, resolved.epochs) == ("xgboost", 50)
    assert own_settings(resolved).max_depth == 3


@pytest.mark.parametrize("training", [TrainingSettings(epochs=7), XGBoostSettings(rounds=7, subsample=0.5)])
def test_settings_survive_as_json(training: TrainingSettings | XGBoostSettings) -> None:
    settings = Settings(training=training)
    again = Settings.model_validate_json(settings.model_dump_json())
    assert again == settings
    assert type(again.training) is type(training)


def test_the_loop_s_section_is_stored_as_before_there_were_trainers() -> None:
    assert "training.trainer" not in describe(Settings())


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ({"epochs": 3}, "training.epochs: no such setting; did you mean"),
        ({"max_dept": 3}, "training.max_dept: no such setting; did you mean training.max_depth?"),
        ({"max_depth": 0}, "training.max_depth: Input should be greater than 0, got 0"),
        ({"subsample": 1.5}, "training.subsample: Input should be less than or equal to 1, got 1.5"),
    ],
)
def test_messages_name_the_settings_of_the_trainer(override: dict[str, object], message: str) -> None:
    with pytest.raises(SettingError) as caught:
        resolve(BOOSTED, {"training": override})
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ({"data": {"feed": "loader"}}, "data.feed: trainer xgboost"),
        ({"scaling": {"min_workers": 1}}, "scaling.min_workers:"),
        (
            {"tracking": {"model_format": "torch_export"}},
            "tracking.model_format: models of trainer xgboost are registered as xgboost_ubj, not as torch_export",
        ),
    ],
)
def test_what_the_trainer_can_t_do_is_refused(override: dict[str, object], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        resolve(BOOSTED, override)


def test_another_trainer_s_section_is_not_read_as_one_s_own() -> None:
    with pytest.raises(AssertionError):
        BOOSTED.section_of("torch")
    assert BOOSTED.max_steps is None
    assert not BOOSTED.uses_float16
