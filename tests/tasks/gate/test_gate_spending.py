"""Levels that run out, settings that change within a reign, and states that have lost looks; all advice must work."""

import json

import numpy as np
import pytest
from looks import outcomes

from tasks.gate.look import Reference, take_look
from tasks.gate.needed import critical
from tasks.gate.reign import Reign, look_key, read_reign, rebuilt_reign
from tasks.gate.rules import better_rule, not_worse_rule
from tasks.gate.signs import FLIPS
from tasks.gate.spending import joint_spent, strict_level
from tasks.problems.regression.gate import NumberOutcomes
from tasks.problems.regression.measures import error_needed, rows_needed
from training.settings.schema import GateSettings

CHAMPION = Reference("7", "weights of the champion")
JOINT, STRICT = GateSettings(), GateSettings(error_control="strict")
SHORT = GateSettings(error_control="strict", horizon=3)
# Changes of three rows: too few for a flip that crosses a boundary, as many flips have the same sum.
FEW = (2, 1, 997)
MANY = (60, 20, 920)
BETTER = (80, 0, 920)


def look_at(counts, settings, reign, name="one"):
    ours, theirs = np.repeat([1, 0, 1], counts), np.repeat([0, 1, 1], counts)
    return take_look(settings.policy, name, CHAMPION, outcomes(ours, theirs), reign, settings)


def after(count, settings, counts=FEW, reign=None):
    """The state after `count` looks at different candidates, and the looks."""
    reign, looks = reign or Reign(), []
    for number in range(count):
        look, reign = look_at(counts, settings, reign, f"{settings.error_control} {number} of {reign.looks}")
        looks.append(look)
    return reign, looks


def numbers(candidate, reference):
    rows = len(candidate)
    digests = np.arange(rows, dtype=np.uint64)
    return NumberOutcomes(digests, digests.astype(float), np.square(candidate), np.square(reference))


def regression(settings, reign=None, rows=400):
    """A look at a regression that is better on each row."""
    reference = np.random.default_rng(0).uniform(1, 2, rows)
    compared = numbers(reference / 2, reference)
    return take_look("better", "one", CHAMPION, compared, reign or Reign(), settings)[0]


def older(reign):
    """The state as an earlier version of Evergreen wrote it, without the level that joint looks have spent."""
    whole = Reign(reign.keys, reign.forgotten, reign.strict_spent, reign.crossed, None)
    assert "joint_spent" not in json.loads(whole.text())
    return read_reign(whole.text())


# --- a strict reign that has spent its level


@pytest.mark.parametrize("horizon", [1, 3, 7, 365, 5000])
def test_a_larger_horizon_gives_nothing_after_the_horizon_was_reached(horizon):
    spent = 0.0
    for looks in range(horizon):
        spent += strict_level(looks, spent, 0.05, horizon)
    assert spent == pytest.approx(0.05)
    for larger in (horizon, horizon + 1, 2 * horizon, 100 * horizon):
        assert strict_level(horizon, spent, 0.05, larger) == 0.0


def test_a_larger_horizon_before_it_is_reached_spreads_the_rest_over_more_looks():
    spent = 2 * 0.05 / 3
    assert strict_level(2, spent, 0.05, 12) == pytest.approx(0.05 / 3 / 10)


def test_a_spent_reign_says_what_helps_and_that_helps():
    reign, _ = after(3, SHORT)
    look, reign = look_at(BETTER, SHORT, reign)
    text = better_rule(look).explanation
    assert (look.level, look.passed, look.number) == (0.0, False, 4)
    assert text.endswith(
        "comparison 4 with version 7 has no level left to spend: not shown to be better. The error that "
        "gate.confidence allows is spent, and a larger gate.horizon alone adds none: lower gate.confidence and set "
        "gate.horizon above 4, or test on fresh rows under another model name"
    )
    raised, _ = look_at(BETTER, SHORT.model_copy(update={"horizon": 1000}), reign)
    lower, _ = look_at(BETTER, SHORT.model_copy(update={"confidence": 0.9}), reign)
    both, _ = look_at(BETTER, SHORT.model_copy(update={"confidence": 0.9, "horizon": 5}), reign)
    fresh, _ = look_at(BETTER, SHORT, Reign())
    assert (raised.passed, lower.passed, both.passed, fresh.passed) == (False, False, True, True)
    assert both.spent == pytest.approx(0.1)
    assert "above 5" in better_rule(raised).explanation


def test_not_worse_says_the_same():
    settings = SHORT.model_copy(update={"policy": "not_worse", "margin": 0.01})
    reign, _ = after(3, settings)
    assert "lower gate.confidence and set gate.horizon above 4" in (
        not_worse_rule(look_at(FEW, settings, reign)[0]).explanation
    )


def test_a_horizon_that_was_reached_with_level_left_can_be_raised():
    reign, _ = after(5, JOINT, MANY)
    look, reign = look_at(BETTER, SHORT, reign)
    assert look.level == 0
    assert better_rule(look).explanation.endswith("not shown to be better. Set gate.horizon above 6")
    assert look_at(BETTER, SHORT.model_copy(update={"horizon": 7}), reign)[0].passed


def test_a_joint_look_after_too_many_strict_ones_says_what_helps():
    settings = GateSettings(horizon=5)
    reign, _ = after(5, settings.model_copy(update={"error_control": "strict"}))
    look, reign = look_at(BETTER, settings, reign)
    assert (look.boundary, look.level, look.spent) == (None, 0.0, pytest.approx(0.05))
    assert better_rule(look).explanation.endswith(
        "not shown to be better. Comparisons under gate.error_control=strict have spent what this comparison may "
        "use: lower gate.confidence, or test on fresh rows under another model name"
    )
    assert look_at(BETTER, settings.model_copy(update={"confidence": 0.9}), reign)[0].passed


# --- p-values that no random flip can show

UNREACHABLE = [
    GateSettings(error_control="strict", confidence=0.982),
    GateSettings(error_control="strict", horizon=1001),
    GateSettings(error_control="strict", confidence=0.99999),
    GateSettings(confidence=0.999),
]


@pytest.mark.parametrize("settings", UNREACHABLE)
def test_a_level_below_the_smallest_p_value_is_named_instead_of_a_needed_error(settings):
    look = regression(settings)
    text = better_rule(look).explanation
    assert 0 < look.level < 1 / (FLIPS + 1) <= look.p
    assert (look.boundary, look.passed, critical(look)) == (None, False, None)
    assert "20,000 random sign flips can't show a p-value below 0.00005: lower gate.confidence" in text
    assert text.endswith(" or gate.horizon") == (settings.confidence < 0.9999)
    assert "RMSE must be" not in text
    assert (error_needed(look), rows_needed(look)) == (None, None)


@pytest.mark.parametrize("settings", UNREACHABLE)
def test_a_lower_confidence_or_horizon_helps(settings):
    assert regression(settings.model_copy(update={"confidence": 0.95, "horizon": 365})).passed
    if settings.confidence < 0.9999:
        assert regression(settings.model_copy(update={"horizon": 3})).passed
    else:
        assert not regression(settings.model_copy(update={"horizon": 1})).passed


def test_an_exact_test_reaches_any_level():
    look = look_at(BETTER, UNREACHABLE[0], Reign())[0]
    assert look.passed
    assert critical(look) is not None


def test_a_level_out_of_reach_beside_a_boundary_is_not_offered():
    reign, _ = after(300, JOINT)
    look = regression(JOINT, reign)
    assert look.boundary is not None
    assert look.level < 1 / (FLIPS + 1)
    assert critical(look) == look.boundary
    assert "or p at most" not in better_rule(look).explanation


# --- joint looks, then strict ones


def test_joint_looks_without_a_crossing_count_for_strict_ones():
    reign, _ = after(50, JOINT)
    assert not reign.crossed.any()
    assert reign.joint_spent == pytest.approx(joint_spent(50, 0.05, 365))
    for state in (reign, older(reign), read_reign(reign.text())):
        look, _ = look_at(MANY, STRICT, state)
        assert look.level == pytest.approx((0.05 - joint_spent(50, 0.05, 365)) / 315)


def test_an_older_state_of_strict_looks_alone_continues_as_before():
    reign, _ = after(50, STRICT)
    assert reign.joint_spent == 0
    for state in (reign, older(reign)):
        assert look_at(MANY, STRICT, state)[0].level == pytest.approx(0.05 / 365)


def test_an_older_state_of_both_kinds_of_looks_is_taken_as_if_all_were_joint():
    reign, _ = after(10, STRICT, reign=after(20, JOINT)[0])
    assert reign.joint_spent == pytest.approx(joint_spent(20, 0.05, 365))
    exact, bound = (look_at(MANY, STRICT, state)[0].level for state in (reign, older(reign)))
    assert bound == pytest.approx((0.05 - joint_spent(30, 0.05, 365) - reign.strict_spent) / 335)
    assert bound < exact


@pytest.mark.parametrize("first", [JOINT, STRICT])
def test_both_kinds_of_looks_together_spend_no_more_than_alpha(first):
    reign = Reign()
    other = STRICT if first is JOINT else JOINT
    for settings, count in ((first, 120), (other, 120), (first, 120)):
        reign, _ = after(count, settings, reign=reign)
    assert 0 < reign.strict_spent + reign.joint_spent <= 0.05


def test_the_level_of_joint_looks_is_that_of_the_settings_at_their_time():
    reign, _ = after(30, GateSettings(confidence=0.8))
    assert reign.joint_spent == pytest.approx(joint_spent(30, 0.2, 365))
    assert look_at(MANY, STRICT, reign)[0].level < 0.05 / 365


def test_the_levels_of_two_homes_are_united():
    common, _ = after(2, JOINT)
    ours, theirs = (look_at(FEW, JOINT, common, name)[1] for name in ("a", "b"))
    assert ours.united(theirs).joint_spent >= joint_spent(4, 0.05, 365)
    assert ours.united(common).joint_spent == common.united(ours).joint_spent == ours.joint_spent
    assert ours.united(older(theirs)).joint_spent is None


# --- looks that the state has forgotten


@pytest.mark.parametrize("settings", [JOINT, STRICT], ids=["joint", "strict"])
def test_a_forgotten_look_is_not_counted_again(settings):
    reign, looks = after(200, settings, MANY)
    assert reign.forgotten == 20
    assert looks[5].key not in reign.keys
    for look in looks:
        assert reign.after(look) == reign


def test_a_look_that_the_state_never_had_is_counted():
    reign, looks = after(3, STRICT)
    lost = looks[1].model_copy(update={"key": look_key("lost")})
    again = reign.after(lost)
    assert (again.looks, again.strict_spent) == (4, pytest.approx(4 * 0.05 / 365))


# --- a damaged state


@pytest.mark.parametrize("settings", [JOINT, STRICT], ids=["joint", "strict"])
def test_a_state_is_rebuilt_from_all_looks(settings):
    reign, looks = after(20, settings, MANY)
    assert rebuilt_reign([*reversed(looks), looks[3]]) == reign
    assert rebuilt_reign([]) == Reign()


@pytest.mark.parametrize("settings", [JOINT, STRICT], ids=["joint", "strict"])
def test_a_state_rebuilt_from_some_looks_has_spent_what_the_newest_says(settings):
    _, looks = after(60, settings, MANY)
    kept_looks = [looks[3], looks[40], looks[57]]
    rebuilt = rebuilt_reign(kept_looks)
    assert (rebuilt.looks, len(rebuilt.keys)) == (58, 3)
    assert rebuilt.strict_spent + rebuilt.joint_spent == pytest.approx(looks[57].spent)
    assert read_reign(rebuilt.text()) == rebuilt
    whole, fewer = (look_at(MANY, STRICT, state)[0] for state in (after(58, settings, MANY)[0], rebuilt))
    assert fewer.number == 59
    assert fewer.level == pytest.approx(whole.level)
    # The flips that lost looks crossed are not known: only the share that is new at this look may cross.
    following, last = look_at(MANY, JOINT, rebuilt)[1], rebuilt.crossed.sum()
    if settings is JOINT:
        new = joint_spent(59, 0.05, 365) - joint_spent(58, 0.05, 365)
        assert following.crossed.sum() - last <= new * (FLIPS + 1) + 1


def test_nothing_passes_at_a_level_of_zero():
    """Not even a p value that is too small for a float."""
    spent = Reign(keys=("a", "b", "c"), strict_spent=0.05)
    look = look_at((1900, 100, 58_000), SHORT, spent)[0]
    assert (look.p, look.level, look.passed) == (0.0, 0.0, False)
    assert look_at((1900, 100, 58_000), SHORT, Reign())[0].passed
