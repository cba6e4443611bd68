"""XGBoost's own names for what a problem minimises and reports; `test_boosting.py` compares the numbers."""

import sys
from dataclasses import replace
from types import SimpleNamespace

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


def test_it_learns_all_built_in_problems() -> None:
    names = {objective_of(version(name)).name for name in PROBLEMS}
    assert names == {"multi:softprob", "reg:squarederror"}
    problems = map(problem_named, PROBLEMS)
    assert OBJECTIVES.keys() == {(problem.loss, problem.metric) for problem in problems}


@pytest.mark.parametrize("change", [{"loss": "poisson"}, {"metric": "mean_deviance"}])
def test_a_problem_that_it_can_t_learn_is_refused_before_the_training(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, str]
) -> None:
    further = SimpleNamespace(OBJECTIVE=replace(OBJECTIVE, **change))
    monkeypatch.setitem(sys.modules, "training.problems.objectives.counts", further)
    with pytest.raises(SettingError, match="trainer xgboost can't learn the problem counts: it minimises"):
        trainer.check_dataset(Settings(), version("counts"))
