"""The generations of population-based training: which trial continues from which, and with which values."""

import pytest

from training.search.generations import _explored, _parents
from training.search.records import Search, Trial, TrialResult
from training.search.space import parse_space

SPACE = {"training.learning_rate": "loguniform(1e-4,1e-1)", "training.optimizer": "choice(adamw,sgd,lion)"}


def search(losses: list[float | None], seed: int = 0) -> Search:
    """A search whose first generation has these validation losses; None: the trial failed."""
    numbers = range(1, len(losses) + 1)
    results = [
        TrialResult(number=number, status="failed" if loss is None else "finished", validation_loss=loss)
        for number, loss in zip(numbers, losses, strict=True)
    ]
    return Search(
        recipe="digits",
        key="5" * 64,
        problem="classification",
        metric="accuracy",
        space=SPACE,
        scheduler="pbt",
        generations=3,
        seed=seed,
        trials=tuple(Trial(number=number, values={}, run_key=str(number)) for number in numbers),
        results=tuple(results),
    )


def parents(finished: Search) -> list[int]:
    return [parent.number for _, parent in _parents(finished, list(finished.trials))]


def test_the_worst_quarter_continues_from_the_best_quarter() -> None:
    assert parents(search([0.4, 0.1, 0.3, 0.2])) == [2, 2, 3, 4]
    assert parents(search([0.4, 0.1])) == [2, 2]
    assert parents(search([0.2, 0.1, 0.3])) == [1, 2, 2]
    many = [search([0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1], seed) for seed in range(30)]
    assert {tuple(parents(finished)[2:]) for finished in many} == {(3, 4, 5, 6, 7, 8)}
    assert {tuple(parents(finished)[:2]) for finished in many} == {(7, 7), (7, 8), (8, 7), (8, 8)}


def test_failed_trials_are_replaced_even_if_most_failed() -> None:
    assert parents(search([None, 0.1, None, None])) == [2, 2, 2, 2]
    assert parents(search([None, 0.1, 0.2, 0.3])) == [2, 2, 3, 4]


def test_equal_losses_are_ranked_by_number() -> None:
    assert parents(search([0.1, 0.1, 0.1, 0.1])) == [1, 2, 3, 1]


def test_a_value_is_near_that_of_the_parent_or_new() -> None:
    space = parse_space(SPACE)
    before = {"training.learning_rate": 0.01, "training.optimizer": "sgd"}
    explored = [_explored(space, before, 0, number) for number in range(1, 401)]
    rates = [values["training.learning_rate"] for values in explored]
    assert explored == [_explored(space, before, 0, number) for number in range(1, 401)]
    near = [rate for rate in rates if rate in (0.008, 0.012)]
    assert 0.65 < len(near) / len(rates) < 0.85  # a quarter is new: 300 of 400 are expected
    assert 0.35 < near.count(0.008) / len(near) < 0.65
    assert all(1e-4 <= rate <= 1e-1 for rate in rates)
    optimizers = [values["training.optimizer"] for values in explored]
    assert optimizers.count("sgd") < 100  # only when drawn again
    assert {"adamw", "lion"} < set(optimizers)


@pytest.mark.parametrize(
    ("text", "value", "lower", "higher"),
    [
        ("uniform(0,0.5)", 0.1, 0.08, 0.12),
        ("uniform(0,0.5)", 0.45, 0.36, 0.5),
        ("uniform(-1,1)", -0.5, -0.4, -0.6),
        ("loguniform(1e-4,1e-1)", 0.00011, 0.0001, 0.000132),
        ("randint(2,100)", 50, 40, 60),
        ("randint(2,10)", 2, 2, 3),
        ("randint(2,10)", 9, 7, 9),
        ("lograndint(16,512)", 100, 80, 120),
        ("quniform(0,0.5,0.1)", 0.1, 0.0, 0.2),
        ("quniform(0,100,10)", 50, 40, 60),
        ("choice(adamw,sgd,lion)", "sgd", "adamw", "lion"),
        ("choice(adamw,sgd)", "sgd", "adamw", "sgd"),
    ],
)
def test_a_near_value_is_in_the_domain(text: str, value: object, lower: object, higher: object) -> None:
    domain = parse_space({"training.x": text})["training.x"]
    near = domain.near(value, up=False), domain.near(value, up=True)
    assert near == pytest.approx((lower, higher)) if isinstance(lower, float) else near == (lower, higher)
    assert type(near[0]) is type(lower)
