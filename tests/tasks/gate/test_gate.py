"""The gate's rules and the texts of its verdicts; its error rates are tested in test_gate_errors.py."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from looks import ALONE, evaluate, from_counts, judged
from scipy.stats import binom

from tasks.gate import same_policy
from training.initial_weights import InitialWeights
from training.records import Verdict
from training.settings.schema import GateSettings

BETTER = GateSettings(**ALONE)
NOT_WORSE = GateSettings(**ALONE, policy="not_worse", margin=0.01)
BOTH = pytest.mark.parametrize("policy", [BETTER, NOT_WORSE], ids=["better", "not_worse"])


def rule(verdict, name):
    return next(gate_rule for gate_rule in verdict.rules if gate_rule.name == name)


def swapped(evaluation):
    """The same comparison with candidate and champion exchanged."""
    return evaluation.model_copy(
        update={
            "candidate": evaluation.champion,
            "champion": evaluation.candidate,
            "only_candidate_right": evaluation.only_champion_right,
            "only_champion_right": evaluation.only_candidate_right,
            "class_changes": tuple((lost, gained) for gained, lost in evaluation.class_changes),
        }
    )


counts = st.tuples(*[st.integers(0, 40)] * 4)
evaluations = (
    st.lists(counts, min_size=1, max_size=4)
    .filter(lambda all_: sum(map(sum, all_)) > 0)
    .map(lambda all_: from_counts(*all_))
)


# --- rules


def test_first_model_needs_only_the_floor():
    labels = np.array([0, 1, 0, 1, 0])
    evaluation = evaluate(labels, [0, 1, 0, 1, 1], None)
    passed = judged(evaluation, GateSettings(**ALONE, floor=0.8))
    assert passed.promote
    assert [(gate_rule.name, gate_rule.value, gate_rule.limit) for gate_rule in passed.rules] == [
        ("floor", 0.8, 0.8)
    ]
    failed = judged(evaluation, GateSettings(**ALONE, floor=0.81))
    assert not failed.promote
    assert failed.summary == "Not promoted: accuracy 80.00 % on 5 rows is below the floor of 81.00 %"
    assert passed.summary == "Promoted as first champion: accuracy 80.00 % on 5 rows"


def test_better_says_its_counts_and_p():
    verdict = judged(from_counts((100, 31, 12, 5), (100, 0, 0, 0)), BETTER)
    assert verdict.promote
    assert verdict.champion_version == "7"
    assert [gate_rule.name for gate_rule in verdict.rules] == ["floor", "better", "class_drop"]
    better = rule(verdict, "better")
    assert (better.value, better.limit) == (pytest.approx(0.0027, rel=0.01), 0.05)
    assert (
        "the candidate alone is right on 31 rows, the champion alone on 12: p = 0.0027" in better.explanation
    )
    assert verdict.summary == (
        "Promoted over version 7: the new model got 19 more of 248 rows right, more than chance explains: accuracy "
        "93.15 % against 85.48 %, a gain of 7.19 points after correction for selection bias"
    )


def test_the_floor_also_holds_for_a_better_candidate():
    verdict = judged(from_counts((100, 31, 12, 5)), GateSettings(**ALONE, floor=0.95))
    assert [gate_rule.name for gate_rule in verdict.rules] == ["floor"]
    assert not verdict.promote
    assert verdict.summary.startswith("Kept version 7: accuracy 88.51 % on 148 rows is below the floor")


def test_not_worse_gives_away_what_its_margin_allows():
    evaluation = from_counts((4900, 20, 30, 50))
    assert judged(evaluation, NOT_WORSE).promote
    tight = judged(evaluation, GateSettings(**ALONE, policy="not_worse", margin=0.003))
    assert not tight.promote
    assert "changes by -0.20 points, at worst by -0.4" in rule(tight, "not_worse").explanation
    assert "too few to show" not in rule(tight, "not_worse").explanation
    assert tight.summary == (
        "Kept version 7: the new model got 10 fewer of 5,000 rows right, and may be worse than version 7 by more than "
        "gate.margin allows"
    )
    assert rule(tight, "not_worse").limit == -0.003


def test_not_worse_says_when_the_test_split_is_too_small():
    verdict = judged(from_counts((360, 0, 0, 0)), GateSettings(**ALONE, policy="not_worse"))
    assert not verdict.promote
    assert (
        "360 rows are too few to show a change within gate.margin: test on more rows or raise gate.margin"
        in rule(verdict, "not_worse").explanation
    )


def test_a_drop_within_noise_passes_and_says_so():
    verdict = judged(from_counts((10, 0, 3, 7), (100, 60, 0, 0)), BETTER)
    assert verdict.promote
    drop = rule(verdict, "class_drop")
    assert (drop.value, drop.limit) == (0.15, 0.05)
    assert "'class 0' lost most: recall -15.00 points on 20 rows" in drop.explanation
    assert drop.explanation.endswith("within the noise of so few rows")


def test_a_significant_drop_below_the_limit_passes():
    verdict = judged(from_counts((950, 0, 40, 10), (500, 400, 0, 100)), BETTER)
    assert rule(verdict, "class_drop").passed
    assert rule(verdict, "class_drop").value == 0.04
    assert verdict.promote


def test_the_class_that_fails_is_named_not_the_noisier_one():
    verdict = judged(from_counts((700, 0, 200, 100), (1, 0, 1, 0), (500, 400, 0, 100)), BETTER)
    assert not verdict.promote
    assert rule(verdict, "class_drop").value == 0.2
    assert verdict.summary.startswith(
        "Kept version 7: class 'class 0' lost most: recall -20.00 points on 1,000 rows"
    )
    assert rule(verdict, "class_drop").explanation.endswith("; 1 of 3 classes fail")


def test_correction_over_classes_needs_stronger_evidence():
    """7 rows lost and none gained: p = 1/128, significant among 4 classes, not among 10."""
    others = (10, 10, 0, 0)
    assert not rule(judged(from_counts((50, 0, 7, 0), *[others] * 3), BETTER), "class_drop").passed
    assert rule(judged(from_counts((50, 0, 7, 0), *[others] * 9), BETTER), "class_drop").passed


def test_a_class_without_rows_neither_fails_nor_counts():
    labels = np.array([0] * 40 + [1] * 40)
    champion = np.where(np.arange(80) < 10, 2, labels)
    verdict = judged(evaluate(labels, labels, champion, classes=3), BETTER)
    assert verdict.promote
    assert rule(verdict, "class_drop").explanation == "no class lost recall; 5.00 % allowed"


@pytest.mark.parametrize(
    ("counts_", "promote"), [((1, 0, 0, 0), False), ((0, 1, 0, 0), False), ((0, 0, 1, 0), False)]
)
@BOTH
def test_one_row_decides_nothing(policy, counts_, promote):
    assert judged(from_counts(counts_), policy).promote is promote


@BOTH
def test_all_right_against_all_wrong(policy):
    assert judged(from_counts((0, 20, 0, 0)), policy).promote
    assert not judged(from_counts((0, 0, 20, 0)), policy).promote


@pytest.mark.parametrize("counts_", [(5000, 0, 0, 0), (0, 0, 0, 5000), (2500, 0, 0, 2500)])
def test_identical_predictions_are_not_better_and_not_worse(counts_):
    assert not judged(from_counts(counts_), BETTER).promote
    assert judged(from_counts(counts_), NOT_WORSE).promote
    assert not judged(from_counts(counts_), GateSettings(**ALONE, policy="not_worse", margin=0)).promote


@pytest.mark.parametrize("metric", ["accuracy", "log_loss", "macro_f1", "calibration_error", "low", "high"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("champion", [True, False])
def test_a_metric_that_is_not_finite_never_promotes(metric, bad, champion):
    evaluation = from_counts((10, 500, 0, 0))
    broken = evaluation.candidate.model_copy(update={metric: bad})
    gone = {} if champion else {"champion": None, "champion_version": None}
    verdict = judged(evaluation.model_copy(update={"candidate": broken} | gone), BETTER)
    assert not verdict.promote
    assert f"{metric} is NaN or infinite" in verdict.summary
    assert Verdict.model_validate_json(verdict.model_dump_json()) == verdict


@pytest.mark.parametrize(
    ("update", "message"),
    [
        ({"rows": 0}, "no test rows"),
        ({"rows": 91}, "do not add up to 91 rows"),
        ({"class_changes": ()}, "has 0 of 2 classes"),
        ({"class_changes": ((3, 5), (0, 0))}, "class_changes do not add up"),
    ],
)
def test_counts_that_contradict_each_other_are_refused(update, message):
    evaluation = from_counts((40, 5, 3, 2), (40, 0, 0, 0))
    assert judged(evaluation, BETTER).rules
    with pytest.raises(ValueError, match=message):
        judged(evaluation.model_copy(update=update), BETTER)


# --- invariances


@settings(max_examples=60, deadline=None)
@given(evaluation=evaluations, rnd=st.randoms(use_true_random=False))
def test_swapping_the_models_swaps_the_side(evaluation, rnd):
    there, back = judged(evaluation, BETTER), judged(swapped(evaluation), BETTER)
    assert not (there.promote and back.promote)
    tie = binom.pmf(
        evaluation.only_candidate_right, evaluation.only_candidate_right + evaluation.only_champion_right, 0.5
    )
    assert rule(there, "better").value + rule(back, "better").value == pytest.approx(1 + tie)


@BOTH
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 80))
def test_the_order_of_rows_changes_nothing(policy, seed, rows):
    rng = np.random.default_rng(seed)
    labels, ours, theirs = rng.integers(3, size=(3, rows))
    mixed = rng.permutation(rows)
    there = judged(evaluate(labels, ours, theirs, 3), policy)
    assert judged(evaluate(labels[mixed], ours[mixed], theirs[mixed], 3), policy) == there


@BOTH
@settings(max_examples=60, deadline=None)
@given(evaluation=evaluations)
def test_a_verdict_is_one_line_of_json_and_agrees_with_its_rules(policy, evaluation):
    verdict = judged(evaluation, policy)
    assert verdict.promote == all(gate_rule.passed for gate_rule in verdict.rules)
    assert "\n" not in verdict.summary
    assert Verdict.model_validate_json(verdict.model_dump_json()) == verdict
    for gate_rule in verdict.rules:
        assert np.isfinite([gate_rule.value, gate_rule.limit]).all()


# --- policy


def test_same_policy_after_a_round_trip_through_json():
    verdict = judged(from_counts((90, 5, 3, 2)), NOT_WORSE)
    stored = Verdict.model_validate(json.loads(verdict.model_dump_json()))
    assert stored.policy["policy"] == "not_worse"
    assert same_policy(stored, NOT_WORSE)


@pytest.mark.parametrize(
    "change",
    [{"floor": 0.5}, {"policy": "better"}, {"margin": 0.02}, {"confidence": 0.9}, {"max_class_drop": 0.1}],
)
def test_any_other_gate_setting_is_another_policy(change):
    verdict = judged(from_counts((90, 5, 3, 2)), NOT_WORSE)
    assert not same_policy(verdict, NOT_WORSE.model_copy(update=change))


def test_a_verdict_from_before_a_setting_was_added_stands_while_the_setting_has_its_default():
    verdict = judged(from_counts((90, 5, 3, 2)), NOT_WORSE)
    del verdict.policy["max_class_drop"]
    assert same_policy(verdict, NOT_WORSE)
    assert not same_policy(verdict, NOT_WORSE.model_copy(update={"max_class_drop": 0.1}))


def test_a_verdict_by_the_first_rules_does_not_stand():
    verdict = judged(from_counts((90, 5, 3, 2)), NOT_WORSE)
    del verdict.policy["error_control"]
    assert not same_policy(verdict, NOT_WORSE)


# --- rows that a model was trained on


def test_rows_that_were_left_out_are_counted_and_said():
    evaluation = from_counts((90, 5, 3, 2)).model_copy(update={"left_out": 40})
    assert rule(judged(evaluation, BETTER), "floor").explanation.endswith(
        "; 40 more test rows are left out, as version 7 was trained on them"
    )


def test_the_parent_of_a_fine_tuned_candidate_is_said():
    evaluation = from_counts((90, 5, 3, 2)).model_copy(update={"left_out": 40})
    whole = judged(evaluation, BETTER).summary
    parent = InitialWeights(reference="champion", model="m", version="5", digest="a" * 64)
    for is_champion, said, trained in ((True, "this version", ""), (False, "m version 5", " or m version 5")):
        child = evaluation.model_copy(update={"initial": parent, "champion_is_parent": is_champion})
        verdict = judged(child, BETTER)
        assert verdict.summary == f"{whole}; the candidate was fine-tuned from {said}"
        assert rule(verdict, "floor").explanation.endswith(f"as version 7{trained} was trained on them")
    file = InitialWeights(reference="/a.safetensors", digest="a" * 64)
    unknown = evaluation.model_copy(update={"initial": file, "training_rows_known": False})
    assert rule(judged(unknown, BETTER), "floor").explanation.endswith(
        "; which rows version 7 or /a.safetensors was trained on is not known"
    )


def test_training_rows_that_are_not_known_are_said():
    evaluation = from_counts((90, 5, 3, 2)).model_copy(update={"training_rows_known": False})
    assert rule(judged(evaluation, BETTER), "floor").explanation.endswith(
        "; which rows version 7 was trained on is not known"
    )
