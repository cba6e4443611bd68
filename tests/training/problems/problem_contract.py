"""What callers rely on of every problem. A test class inherits :class:`ProblemContract` and gives the fixtures."""

import subprocess
import sys
from abc import ABC, abstractmethod

import numpy as np
import pyarrow as pa
import pytest
import torch

from tasks.gate.outcomes import gate_of
from tasks.report_page.sections import sections_of
from training.errors import TrainingError
from training.problems import problem_named, problem_of, problem_with_metric
from training.problems.base import Predictions, Problem, Targets
from training.problems.objectives import objective_module
from training.records import DatasetVersion, EpochMetrics, Evaluation, Score

ROWS = 60


class ProblemContract(ABC):
    """Tests of a problem, on random network outputs for :data:`ROWS` rows."""

    @abstractmethod
    def problem(self) -> Problem:
        """The problem under test."""

    @abstractmethod
    def version(self) -> DatasetVersion:
        """A dataset version of this problem; only what a problem reads of it matters."""

    @abstractmethod
    def targets(self) -> Targets:
        """Targets of :data:`ROWS` rows, not all equal."""

    @abstractmethod
    def perfect(self) -> Predictions:
        """Predictions without an error for :meth:`targets`."""

    def outputs(self, seed: int = 0) -> torch.Tensor:
        """Random outputs of a network, with a graph of gradients."""
        generator = torch.Generator().manual_seed(seed)
        columns = self.problem().outputs(self.version())
        return torch.randn((ROWS, columns), generator=generator).requires_grad_()

    def scored(self, predictions: Predictions) -> Score:
        return self.problem().score(self.targets(), predictions, self.version(), 0.95, 1.0, 1.0)

    def test_it_is_found_by_its_name(self) -> None:
        assert problem_named(self.problem().name) == self.problem()
        assert problem_with_metric({self.problem().metric: 0.5}) == self.problem()

    def test_its_scores_survive_as_json(self) -> None:
        score = self.scored(self.perfect())
        stored = Evaluation(
            rows=ROWS,
            candidate=score,
            champion=score,
            champion_version="1",
            predictions="predictions.parquet",
        ).model_dump_json()
        evaluation = Evaluation.model_validate_json(stored)
        assert (evaluation.candidate, evaluation.champion) == (score, score)
        assert problem_of(evaluation.candidate) == self.problem()

    def test_the_gate_compares_its_rows_and_equal_models_never_win(self) -> None:
        targets = self.targets()
        worse = self.problem().torch_predictions(self.outputs(), self.version()).detach().numpy()
        columns = {"digest": np.arange(ROWS, dtype=np.uint64), "label": targets}
        for name, predicted in (
            ("candidate", self.perfect()),
            ("champion", worse),
            ("anchor", self.perfect()),
        ):
            for ending, values in self.problem().row_columns(targets, predicted).items():
                columns[name + ending] = values
        gate = gate_of(self.problem().name)
        better, equal = (
            gate.outcomes(pa.table(columns), side).compared("better", 0.0) for side in ("champion", "anchor")
        )
        assert better.gained > better.lost == 0
        assert better.difference > 0
        assert (equal.gained, equal.lost, equal.difference) == (0, 0, 0)
        assert {better.measure, equal.measure} <= gate.MEASURES.keys()

    def test_the_report_shows_its_metric(self) -> None:
        measure = sections_of(self.problem().name).MEASURE
        assert (measure.name, measure.greater_is_better) == (
            self.problem().metric,
            self.problem().greater_is_better,
        )
        assert measure.of(self.scored(self.perfect())) == getattr(
            self.scored(self.perfect()), self.problem().metric
        )

    @pytest.mark.parametrize("cut", [1, 17, ROWS - 1])
    def test_sums_do_not_depend_on_how_rows_are_divided_into_batches(self, cut: int) -> None:
        output, targets = self.outputs(), torch.from_numpy(self.targets())
        whole = self.problem().torch_sums(output, targets, self.version())
        first = self.problem().torch_sums(output[:cut], targets[:cut], self.version())
        rest = self.problem().torch_sums(output[cut:], targets[cut:], self.version())
        for total, first_sum, rest_sum in zip(whole, first, rest, strict=True):
            assert float(total.detach()) == pytest.approx(float((first_sum + rest_sum).detach()), rel=1e-5)

    def test_the_loss_has_a_gradient_and_the_metric_has_none(self) -> None:
        output = self.outputs()
        loss, total = self.problem().torch_sums(output, torch.from_numpy(self.targets()), self.version())
        loss.backward()
        assert output.grad is not None
        assert output.grad.abs().sum() > 0
        assert not total.requires_grad

    def test_the_metric_of_a_training_is_that_of_the_evaluation(self) -> None:
        output = self.outputs()
        _, total = self.problem().torch_sums(output, torch.from_numpy(self.targets()), self.version())
        predictions = self.problem().torch_predictions(output, self.version()).detach().numpy()
        measured = getattr(self.scored(predictions), self.problem().metric)
        assert self.problem().reduced(float(total.detach()), ROWS) == pytest.approx(measured, rel=1e-5)

    def test_a_perfect_prediction_reaches_the_highest_score(self) -> None:
        assert self.problem().floor_value(self.scored(self.perfect())) == 1.0

    def test_a_worse_prediction_scores_worse(self) -> None:
        predictions = self.problem().torch_predictions(self.outputs(), self.version()).detach().numpy()
        worse, best = self.scored(predictions), self.scored(self.perfect())
        assert self.problem().floor_value(worse) < 1
        ours, theirs = (getattr(score, self.problem().metric) for score in (worse, best))
        assert (ours < theirs) is self.problem().greater_is_better

    def test_a_prediction_that_is_not_finite_names_its_row(self) -> None:
        predictions = self.perfect().copy()
        predictions[7] = np.nan
        with pytest.raises(TrainingError, match="test row 7"):
            self.scored(predictions)

    def test_its_loss_and_metric_have_names_by_which_trainers_know_them(self) -> None:
        assert self.problem().loss.isidentifier()
        assert self.problem().metric.isidentifier()

    def test_metrics_of_a_release_are_finite_and_named_by_the_metric(self) -> None:
        selected = EpochMetrics(
            epoch=1, step=1, train_loss=1, train_score=1, validation_loss=0.5, validation_score=0.25,
            learning_rate=1, images_per_s=1, rows=ROWS, checksum=0,
        )  # fmt: skip
        score = self.scored(self.perfect())
        made = self.problem().release_metrics(score, score, selected)
        assert all(map(np.isfinite, made.values()))
        assert made[f"validation_{self.problem().metric}"] == 0.25
        assert made[self.problem().metric] == made[f"champion_{self.problem().metric}"]
        # The command's summary finds the problem and its interval by these names.
        assert {f"{self.problem().metric}_low", f"{self.problem().metric}_high"} <= made.keys()
        assert problem_with_metric(made).name == self.problem().name

    def test_neither_the_problem_nor_its_objective_imports_torch(self) -> None:
        modules = (type(self.problem()).__module__, objective_module(self.problem().name))
        code = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

    def test_the_purpose_is_a_clause_that_names_inputs_and_classes(self) -> None:
        version = self.version()
        said = self.problem().purpose("these rows", version)
        assert "these rows" in said
        assert not said.endswith(".")
        assert all(name in said for name in version.classes)
        assert self.problem().model_type
