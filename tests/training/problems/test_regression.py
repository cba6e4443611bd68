"""Scores of regressions: values computed by hand, invariances, the interval's coverage, and the sums of a training."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy.stats import norm

from training.errors import TrainingError
from training.problems import problem_named, problem_of
from training.problems.classification import Classification
from training.problems.regression import (
    Regression,
    largest_errors,
    score,
    shown,
)
from training.problems.skewed_means import mean_interval, skewness_corrected
from training.records import DatasetVersion, EpochMetrics, Evaluation, TableColumn, TableSchema

REGRESSION = Regression()


def version(mean: float = 100.0, std: float = 20.0) -> DatasetVersion:
    table = TableSchema(
        target="price", columns=(TableColumn(name="x", kind="number"),), target_mean=mean, target_std=std
    )
    return DatasetVersion(
        name="prices", fingerprint="f", path="", classes=(), shape=(1,), parts={}, label_counts={}, mean=(), std=(),
        source_digest="", source_origin="", problem="regression", table=table,
    )  # fmt: skip


def scored(targets, predictions, confidence=0.95):
    return score(np.array(targets, float), np.array(predictions, np.float32), confidence, 1.0, 1000.0)


def noisy(rows=500, seed=0, size=5.0):
    rng = np.random.default_rng(seed)
    targets = rng.normal(100, 20, rows)
    return targets, (targets + rng.normal(0, size, rows)).astype(np.float32)


# --- scores


def test_scores_by_hand():
    result = scored([1, 2, 3, 4], [2, 2, 3, 1])
    assert result.rmse == pytest.approx(math.sqrt((1 + 9) / 4))
    assert result.mae == pytest.approx(1.0)
    assert result.r2 == pytest.approx(1 - 10 / 5)
    assert result.median_error == pytest.approx(0.5)
    assert result.bias == pytest.approx(-0.5)
    assert result.low < result.rmse < result.high


def test_scores_are_those_of_scikit_learn():
    from sklearn.metrics import mean_absolute_error, median_absolute_error, r2_score, root_mean_squared_error

    targets, predictions = noisy()
    result = scored(targets, predictions)
    assert result.rmse == pytest.approx(root_mean_squared_error(targets, predictions))
    assert result.mae == pytest.approx(mean_absolute_error(targets, predictions))
    assert result.r2 == pytest.approx(r2_score(targets, predictions))
    assert result.median_error == pytest.approx(median_absolute_error(targets, predictions))


def test_a_perfect_model():
    result = scored([1, 2, 3], [1, 2, 3])
    assert (result.rmse, result.low, result.high, result.mae, result.r2, result.bias) == (0, 0, 0, 0, 1, 0)


@pytest.mark.parametrize("constant", [7.0, 0.1])
def test_r2_of_constant_targets_is_defined(constant):
    targets = np.full(10, constant)
    assert score(targets, targets.astype(np.float32) * 0 + 8, 0.95, 1.0, 1.0).r2 == 0
    exact = np.full(10, 7.0)
    assert score(exact, exact.astype(np.float32), 0.95, 1.0, 1.0).r2 == 1


def test_predicting_the_mean_has_r2_0_and_worse_predictions_have_less():
    targets, _ = noisy()
    mean = np.full(len(targets), targets.mean())
    assert scored(targets, mean).r2 == pytest.approx(0, abs=1e-6)
    assert scored(targets, mean + 50).r2 < 0


def test_scores_do_not_depend_on_the_order_and_follow_the_unit():
    targets, predictions = noisy()
    mixed = np.random.default_rng(1).permutation(len(targets))
    ordered, other = scored(targets, predictions), scored(targets[mixed], predictions[mixed])
    scaled = scored(targets * 8, predictions * 8)  # a power of two: no rounding
    for name in ("rmse", "low", "high", "mae", "median_error", "bias"):
        assert getattr(other, name) == pytest.approx(getattr(ordered, name))
        assert getattr(scaled, name) == pytest.approx(8 * getattr(ordered, name))
    assert scaled.r2 == pytest.approx(ordered.r2)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_a_prediction_that_is_not_finite_is_named(wrong):
    targets, predictions = noisy()
    predictions[17] = wrong
    for compute in (lambda: scored(targets, predictions), lambda: largest_errors(targets, predictions)):
        with pytest.raises(
            TrainingError, match=r"test row 17: .*not finite \(1 of 500 rows\).*learning_rate"
        ):
            compute()


def test_impossible_input_is_refused():
    for targets, predictions in (([], []), ([1.0, math.nan], [1, 1]), ([[1.0]], [[1]]), ([1.0, 2.0], [1])):
        with pytest.raises(ValueError, match=r"targets|predictions"):
            scored(targets, predictions)


def test_the_largest_errors_come_first_without_exact_rows():
    targets, predictions = np.array([1.0, 2, 3, 4, 5]), np.array([1, 5, 3, -1, 2], np.float32)
    largest = largest_errors(targets, predictions)
    assert [(error.row, error.truth, error.predicted) for error in largest] == [
        (3, 4, -1),
        (1, 2, 5),
        (4, 5, 2),
    ]
    assert [error.row for error in largest_errors(targets, predictions, limit=1)] == [3]


# --- the interval


ERRORS = {
    "normal": (lambda rng, shape: rng.normal(size=shape), 1.0),
    "laplace": (lambda rng, shape: rng.laplace(size=shape), 2.0),
    "student, 6 degrees of freedom": (lambda rng, shape: rng.standard_t(6, size=shape), 1.5),
}


@pytest.mark.parametrize("kind", ERRORS)
@pytest.mark.parametrize(("rows", "least"), [(100, 0.905), (1000, 0.925)])
def test_the_interval_covers_the_true_error_about_as_often_as_promised(kind, rows, least):
    """Coverage at 0.95. No interval from 100 rows alone covers 95 % for heavy tails: the tail is often not in them."""
    draw, truth = ERRORS[kind]
    samples = np.square(draw(np.random.default_rng(7), (2000, rows)))
    limits = np.array([mean_interval(sample, 0.95) for sample in samples])
    covered = ((limits[:, 0] <= truth) & (truth <= limits[:, 1])).mean()
    assert least <= covered <= 0.97
    deviation = norm.ppf(0.975) * samples.std(axis=1, ddof=1) / math.sqrt(rows)
    plain = (np.abs(samples.mean(axis=1) - truth) <= deviation).mean()
    assert covered > plain - 0.005  # never worse than the uncorrected interval, and better on few rows
    if rows == 100:
        assert covered > plain + 0.005


def test_the_interval_of_normal_errors_is_near_the_exact_one():
    """The mean square of n normal errors is a chi-square with n degrees of freedom over n."""
    from scipy.stats import chi2

    rows = 200
    squares = chi2.ppf((np.arange(rows) + 0.5) / rows, 1)
    low, high = mean_interval(squares, 0.95)
    exact = rows * squares.mean() / chi2.ppf([0.975, 0.025], rows)
    assert (low, high) == pytest.approx(tuple(exact), rel=0.06)


def test_a_higher_confidence_gives_a_wider_interval():
    targets, predictions = noisy()
    narrow, wide = scored(targets, predictions, 0.8), scored(targets, predictions, 0.99)
    assert wide.low < narrow.low < narrow.rmse < narrow.high < wide.high


def test_limits_and_the_corrected_score_are_inverse():
    """The mean minus the lower limit has a corrected score of z."""
    values = np.random.default_rng(0).lognormal(0, 1, 400)
    low, high = mean_interval(values, 0.95)
    assert skewness_corrected(values - low) == pytest.approx(norm.ppf(0.975))
    assert skewness_corrected(values - high) == pytest.approx(-norm.ppf(0.975))


def test_the_corrected_score_of_a_symmetric_sample_is_the_plain_one():
    values = np.array([-2.0, -1, 0, 1, 2]) + 0.3
    assert skewness_corrected(values) == pytest.approx(math.sqrt(5) * 0.3 / math.sqrt(2))
    assert skewness_corrected(np.zeros(3)) == 0
    assert skewness_corrected(np.full(3, 2.0)) == math.inf


# --- the sums of a training


@pytest.mark.parametrize("cuts", [[], [1], [3, 4, 9]])
def test_sums_do_not_depend_on_how_rows_are_split_into_batches(cuts):
    output, targets = torch.randn(10, 1), torch.randn(10, dtype=torch.float64) * 20 + 100
    pieces = [slice(a, b) for a, b in zip([0, *cuts], [*cuts, 10], strict=True)]
    sums = [REGRESSION.torch_sums(output[piece], targets[piece], version()) for piece in pieces]
    whole = REGRESSION.torch_sums(output, targets, version())
    assert float(sum(loss for loss, _ in sums)) == pytest.approx(float(whole[0]), rel=1e-6)
    assert float(sum(other for _, other in sums)) == pytest.approx(float(whole[1]), rel=1e-12)


def test_the_reduced_sum_is_the_rmse_of_the_predictions():
    output, targets = torch.randn(50, 1), torch.randn(50, dtype=torch.float64) * 20 + 100
    loss, total = REGRESSION.torch_sums(output, targets, version())
    predictions = REGRESSION.torch_predictions(output, version())
    assert predictions.shape == (50,)
    assert predictions.dtype == torch.float32
    result = scored(targets.numpy(), predictions.numpy())
    assert REGRESSION.reduced(float(total), 50) == pytest.approx(result.rmse, rel=1e-5)
    assert float(loss) * 20**2 == pytest.approx(float(total), rel=1e-5)
    assert total.dtype == torch.float64


def test_only_the_loss_has_a_gradient():
    output = torch.randn(4, 1, requires_grad=True)
    loss, total = REGRESSION.torch_sums(output, torch.randn(4, dtype=torch.float64), version())
    assert loss.requires_grad
    assert not total.requires_grad
    loss.backward()
    assert output.grad is not None
    assert torch.isfinite(output.grad).all()


def test_predictions_can_be_exported():
    class Serving(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.model = torch.nn.Linear(3, 1)

        def forward(self, rows):
            return REGRESSION.torch_predictions(self.model(rows), version())

    module, rows = Serving().eval(), torch.randn(4, 3)
    program = torch.export.export(module, (rows,), dynamic_shapes=({0: torch.export.Dim("rows")},))
    assert torch.equal(program.module()(torch.cat([rows, rows])), module(torch.cat([rows, rows])))


def test_a_dataset_without_a_number_to_predict_is_refused():
    images = version().model_copy(update={"table": None})
    with pytest.raises(ValueError, match=r"prices: a regression needs the mean and deviation of a target"):
        REGRESSION.torch_predictions(torch.zeros(2, 1), images)


# --- as every problem


def test_a_problem_is_found_by_its_name_and_by_its_scores():
    assert isinstance(problem_named("regression"), Regression)
    assert isinstance(problem_named("classification"), Classification)
    assert isinstance(problem_of(scored([1, 2], [1, 2])), Regression)


def test_the_metrics_of_a_release_have_their_names():
    row = EpochMetrics(
        epoch=1, step=1, train_loss=1.0, train_score=1.0, validation_loss=2.0, validation_score=3.0,
        learning_rate=0.1, images_per_s=1.0, rows=1, checksum=0,
    )  # fmt: skip
    ours, theirs = scored([1, 2, 3], [1, 2, 4]), scored([1, 2, 3], [1, 2, 5])
    metrics = REGRESSION.release_metrics(ours, theirs, row)
    assert set(metrics) == {
        "rmse", "rmse_low", "rmse_high", "mae", "r2", "validation_loss", "validation_rmse", "latency_ms",
        "champion_rmse",
    }  # fmt: skip
    assert (metrics["validation_loss"], metrics["validation_rmse"]) == (2.0, 3.0)
    assert "champion_rmse" not in REGRESSION.release_metrics(ours, None, row)


def test_the_texts_for_people():
    targets, predictions = noisy(10_788, size=5.0)
    result = scored(targets * 100, predictions * 100)
    words = REGRESSION.in_words(result, "10,788 test rows")
    assert words.startswith(f"RMSE {result.rmse:.4g} (95\N{NO-BREAK SPACE}% confidence: {result.low:.4g} to ")
    assert words.endswith(f"R² {result.r2:.4f}, on 10,788 test rows")
    assert f" to {result.high:.4g}, rows taken as independent), R² " in words
    assert REGRESSION.headline(result).startswith(f"test RMSE {result.rmse:.4g} ({result.low:.4g} to ")
    assert REGRESSION.against(result, result) == f"RMSE {shown(result.rmse)} against {shown(result.rmse)}"
    assert REGRESSION.floor_text(0.98123) == ("R²", "0.9812")
    assert [shown(value) for value in (561.26, 0.0123456, 12345678.9, 0)] == [
        "561.3",
        "0.01235",
        "12,345,679",
        "0",
    ]


@pytest.mark.parametrize("targets", [[1.0], [1.0, 2.0, 3.0]], ids=["one row", "equal errors"])
def test_no_interval_is_printed_if_the_errors_do_not_vary(targets):
    result = scored(targets, [target + 2 for target in targets])
    assert (result.low, result.rmse, result.high) == (2, 2, 2)
    assert REGRESSION.not_finite(result) == []
    assert REGRESSION.headline(result) == (
        f"test RMSE 2 (no interval: the errors of the test rows do not vary), R² {result.r2:.4f}"
    )
    assert REGRESSION.in_words(result, "test rows").startswith(
        "RMSE 2 (no interval: the errors of the test rows do not vary), R² "
    )


def test_scores_of_the_other_problem_are_refused():
    ours = scored([1, 2], [1, 3])
    with pytest.raises(TypeError, match="classification"):
        Classification().figure(ours)
    labels, probabilities = np.array([0, 1]), np.eye(2, dtype=np.float32)
    from training.problems.probabilities import score as score_classes

    with pytest.raises(TypeError, match="regression"):
        REGRESSION.figure(score_classes(labels, probabilities, ("a", "b"), 0.95, 1.0, 1.0))


def test_an_evaluation_is_read_as_it_was_written():
    targets, predictions = noisy()
    made = Evaluation(
        rows=500, candidate=scored(targets, predictions), champion=scored(targets, predictions + 1),
        champion_version="3", predictions="p", largest_errors=largest_errors(targets, predictions),
    )  # fmt: skip
    assert Evaluation.model_validate_json(made.model_dump_json()) == made


def test_what_was_recorded_is_computed_again_with_the_same_bits():
    targets, predictions = noisy()
    ours, theirs = scored(targets, predictions), scored(targets, predictions + 1)
    made = Evaluation(rows=500, candidate=ours, champion=theirs, champion_version="3", predictions="p")
    columns = {
        name: REGRESSION.row_columns(targets, values)[""]
        for name, values in (("candidate", predictions), ("champion", predictions + 1))
    }
    pairs = REGRESSION.recounted(targets, columns, made)
    assert set(pairs) == {"rmse", "mae", "r2", "champion_rmse"}
    assert all(said == again for said, again in pairs.values())
    columns["candidate"] = columns["candidate"] + 1e-3
    assert all(
        said != again for said, again in list(REGRESSION.recounted(targets, columns, made).values())[:3]
    )


def test_importing_the_problem_imports_neither_torch_nor_scipy():
    program = (
        "import sys\n"
        "from training.problems.regression import Regression, score\n"
        "import numpy as np\n"
        "score(np.arange(5.0), np.arange(5, dtype=np.float32) + 1, 0.95, 1.0, 1.0)\n"
        "sys.exit(bool({'torch', 'scipy', 'sklearn', 'pandas', 'xgboost'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
