"""The contract of a problem, for `absolute_error.py`, and its gate. A test file of the product."""

from problem_contract import ROWS
from test_problem_contract import TestRegression, version_of

from training.problems import problem_named
from training.problems.base import Problem
from training.problems.objectives import objective_named
from training.records import DatasetVersion, TableColumn, TableSchema

NAME = "absolute_error"
Regression = TestRegression
del TestRegression  # or its tests would run here, too


class TestAbsoluteError(Regression):
    """On the same rows as a regression."""

    def problem(self) -> Problem:
        return problem_named(NAME)

    def version(self) -> DatasetVersion:
        columns = (TableColumn(name="weight", kind="number"),)
        schema = TableSchema(target="price", columns=columns, target_mean=300, target_std=40)
        return version_of(NAME, (), schema)

    def test_its_objective_is_the_problem_itself(self) -> None:
        assert objective_named(NAME) == self.problem()
        assert len(self.targets()) == ROWS
