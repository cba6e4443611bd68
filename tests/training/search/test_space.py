"""The space of a search: its spelling, and the values that trials get."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from training.errors import SettingError
from training.search.space import EXAMPLES, parse_space, propose, split_assignments, text_of
from training.settings.overrides import value_of

SPACE = parse_space(
    {
        "training.learning_rate": "loguniform(1e-4, 1e-1)",
        "training.weight_decay": "uniform(0,0.5)",
        "training.label_smoothing": "quniform(0,0.3,0.1)",
        "training.global_batch_size": "quniform(16,128,16)",
        "training.epochs": "randint(2,10)",
        "training.accumulation_steps": "lograndint(1,64)",
        "training.optimizer": "choice(adamw,sgd)",
        "training.clip_norm": "choice(none,1,2.5)",
    }
)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("0.1", "expected one of uniform(...)"),
        ("normal(0,1)", "expected one of uniform(...)"),
        ("uniform(0,1", "expected one of uniform(...)"),
        ("uniform(0)", "uniform takes two numbers"),
        ("uniform(0,1,2)", "uniform takes two numbers"),
        ("uniform(a,b)", "uniform takes two numbers"),
        ("uniform(1,1)", "the first number of uniform must be less than the second"),
        ("uniform(0,inf)", "the first number of uniform must be less than the second"),
        ("uniform(nan,1)", "the first number of uniform must be less than the second"),
        ("loguniform(0,1)", "the numbers of loguniform must be above 0"),
        ("randint(0.5,3)", "randint takes two whole numbers"),
        ("lograndint(0,4)", "the numbers of lograndint must be above 0"),
        ("quniform(0,1)", "quniform takes three numbers"),
        ("quniform(0,1,0)", "the step of quniform must be above 0"),
        ("quniform(0,1,2)", "the step of quniform must be above 0"),
        ("choice(a)", "choice takes two or more different values"),
        ("choice(a,a)", "choice takes two or more different values"),
        ("choice(1.0,1.00)", "choice takes two or more different values"),
        ("choice(1e999,2)", "choice takes finite numbers"),
        (f"randint(1,{'9' * 400})", "int too large"),
        ("quniform(0,1,1e-320)", "the step of quniform is too small"),
        ("uniform(-1e308,1e308)", "the numbers of uniform are too far apart"),
        ("choice(a,,b)", "choice takes two or more different values"),
        ("choice([1],[2])", "choice takes numbers, words, true, false or none"),
        ("__import__(os)", "expected one of uniform(...)"),
    ],
)
def test_a_wrong_spelling_is_refused_with_the_rule_and_an_example(text: str, why: str) -> None:
    with pytest.raises(SettingError, match=re.escape(why)) as refused:
        parse_space({"training.learning_rate": text})
    assert str(refused.value).startswith(f"--space training.learning_rate={text}: ")
    assert any(example in str(refused.value) for example in EXAMPLES.values())


def test_each_example_is_valid() -> None:
    assert parse_space(dict(EXAMPLES)).keys() == EXAMPLES.keys()


@pytest.mark.parametrize(
    ("assignments", "why"),
    [
        (["training.learning_rate"], "expected SETTING=VALUES"),
        (["=uniform(0,1)"], "expected SETTING=VALUES"),
        (["a.b=uniform(0,1)", "a.b=uniform(0,2)"], "name each setting once"),
    ],
)
def test_wrong_assignments_are_refused(assignments: list[str], why: str) -> None:
    with pytest.raises(SettingError, match=why):
        split_assignments(assignments)


def test_an_empty_space_is_refused() -> None:
    with pytest.raises(SettingError, match="name at least one setting"):
        parse_space({})


@pytest.mark.parametrize(
    ("space", "why"),
    [
        ({"training.learning_rate": [1e-3]}, "--space training.learning_rate=[0.001]: expected texts, as {"),
        ({5: "uniform(0,1)"}, "--space 5='uniform(0,1)': expected texts"),
        (["training.learning_rate"], "--space: expected the values of each setting, as {"),
    ],
)
def test_a_space_of_another_type_is_refused(space: Any, why: str) -> None:
    with pytest.raises(SettingError, match=re.escape(why)):
        parse_space(space)


def test_values_lie_in_their_domain_and_have_its_type() -> None:
    proposed = propose(SPACE, 300, seed=1)
    assert len(proposed) == 300
    columns = {name.partition(".")[2]: [values[name] for values in proposed] for name in SPACE}
    assert all(1e-4 <= value <= 1e-1 for value in columns["learning_rate"])
    low_half = sum(value < 10**-2.5 for value in columns["learning_rate"])
    assert 100 < low_half < 200  # as many below the geometric mean of the limits as above
    assert all(0 <= value <= 0.5 for value in columns["weight_decay"])
    assert set(columns["label_smoothing"]) == {0.0, 0.1, 0.2, 0.3}
    assert set(columns["global_batch_size"]) == set(range(16, 129, 16))
    assert all(type(value) is int for value in columns["global_batch_size"])
    assert set(columns["epochs"]) == set(range(2, 10))
    assert min(columns["accumulation_steps"]) == 1
    assert max(columns["accumulation_steps"]) < 64
    assert set(columns["optimizer"]) == {"adamw", "sgd"}
    assert set(map(text_of, columns["clip_norm"])) == {"none", "1", "2.5"}


def test_a_larger_search_begins_with_the_same_trials() -> None:
    assert propose(SPACE, 20, seed=3)[:5] == propose(SPACE, 5, seed=3)
    assert propose(SPACE, 5, seed=4) != propose(SPACE, 5, seed=3)


def test_a_further_setting_leaves_the_values_of_others() -> None:
    small_space = {"training.learning_rate": SPACE["training.learning_rate"]}
    first = [values["training.learning_rate"] for values in propose(SPACE, 10, seed=3)]
    assert [values["training.learning_rate"] for values in propose(small_space, 10, seed=3)] == first


def test_another_process_proposes_the_same() -> None:
    program = (
        "from training.search.space import parse_space, propose\n"
        "print(propose(parse_space({'a.b': 'loguniform(1e-4,1e-1)', 'a.c': 'randint(0,1000)'}), 2, 5))"
    )
    said = {
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    }
    assert len(said) == 1


def test_no_two_trials_are_equal_and_a_small_space_gives_fewer() -> None:
    space = parse_space({"training.optimizer": "choice(adamw,adam,sgd)", "training.epochs": "randint(1,3)"})
    proposed = propose(space, 50, seed=0)
    assert len(proposed) == 6
    assert len({str(values) for values in proposed}) == 6


def test_a_path_is_written_as_a_path() -> None:
    assert text_of(Path("champion")) == "./champion"
    assert text_of(Path("/data/dog")) == "/data/dog"


@pytest.mark.parametrize(
    "text", ["2024", "1e3", "true", "null", "none", '"quoted"', "[1]", "plain", "", "a b"]
)
def test_a_text_is_written_as_set_reads_it(text: str) -> None:
    assert value_of(text_of(text)) == text
