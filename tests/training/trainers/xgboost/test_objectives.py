"""XGBoost's own names for what a problem minimises and reports; `test_boosting.py` compares the numbers."""

import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec

import pytest

from training.errors import SettingError
from training.problems import problem_named
from training.problems.objectives.regression import OBJECTIVE
from training.records import DatasetVersion
from training.seams import PROBLEMS
from training.settings.schema import Settings
from training.trainers.xgboost import trainer
from training.trainers.xgboost.objectives import OBJECTIVES, objective_of


def version(problem: str) -> DatasetVersion:
    return DatasetVersion.model_construct(name="x", problem=problem, classes=("a", "b"), table=None)


def test_it_learns_problems_by_their_loss_and_metric() -> None:
    asked = {name: (problem_named(name).loss, problem_named(name).metric) for name in PROBLEMS}
    learnt = {name: objective_of(version(name)).name for name in PROBLEMS if asked[name] in OBJECTIVES}
    assert learnt["classification"] == "multi:softprob"
    assert learnt["regression"] == "reg:squarederror"
    assert OBJECTIVES.keys() <= set(asked.values())  # none that no problem asks for


@pytest.mark.parametrize("change", [{"loss": "poisson"}, {"metric": "mean_deviance"}])
def test_a_problem_that_it_can_t_learn_is_refused_before_the_training(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, str]
) -> None:
    further = module_from_spec(ModuleSpec("training.problems.objectives.counts", None))
    vars(further)["OBJECTIVE"] = replace(OBJECTIVE, **change)
    monkeypatch.setitem(sys.modules, further.__name__, further)
    with pytest.raises(SettingError, match="trainer xgboost can't learn the problem counts: it minimises"):
        trainer.check_dataset(Settings(), version("counts"))
