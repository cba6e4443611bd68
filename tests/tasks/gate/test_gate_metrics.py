"""The gate by another metric: which one is chosen, looks and verdicts by it, and policy "unless_worse"."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from looks import from_counts, judged, outcomes_of
from small_tables import described, values

from tasks.gate import judge
from tasks.gate.baseline import baseline_look
from tasks.gate.look import Reference, take_look
from tasks.gate.outcomes import read_outcomes
from tasks.gate.reign import Reign
from training.errors import SettingError
from training.problems import problem_named
from training.problems.gate_metrics import metric_for, metric_numbers
from training.problems.probabilities import paired, score
from training.records import DatasetVersion, Evaluation, GateMetric, Verdict
from training.settings.schema import GateSettings

ALONE: dict[str, Any] = {"error_control": "strict", "horizon": 1}
CLASSES = ("no", "yes")


def version_of(counts: tuple[int, ...], names: tuple[str, ...] = CLASSES) -> DatasetVersion:
    rows = described(values(), np.zeros(40, np.int64))
    return rows.model_copy(update={"classes": names, "label_counts": {"train": counts, "test": counts}})


# --- the choice


@pytest.mark.parametrize(
    ("counts", "name", "why"),
    [
        ((90, 10), "accuracy", "no class is rare"),
        ((901, 99), "auc", "only 9.90 % of the rows are 'yes'"),
        ((99, 901), "auc", "only 9.90 % of the rows are 'no'"),
        ((500, 440, 60), "balanced_accuracy", "only 6.00 % of the rows are 'c'"),
        ((100,) * 10, "accuracy", "no class is rare"),
        ((*(110,) * 9, 40), "balanced_accuracy", "only 3.88 % of the rows are 'j'"),
    ],
)
def test_a_rare_class_asks_for_a_metric_that_sees_it(counts: tuple[int, ...], name: str, why: str) -> None:
    names = CLASSES if len(counts) == 2 else tuple("abcdefghij"[: len(counts)])
    metric = metric_for(GateSettings(), version_of(counts, names), None)
    assert metric is not None
    assert (metric.name, metric.why) == (name, why)


def test_a_champion_keeps_its_metric_unless_another_is_set() -> None:
    kept = GateMetric(name="auc", why="only 9.00 % of the rows are 'yes'")
    version = version_of((80, 20))
    again = metric_for(GateSettings(), version, kept)
    assert again is not None
    assert (again.name, again.why) == ("auc", "it is that of the champion")
    chosen = metric_for(GateSettings(metric="brier"), version, kept)
    assert chosen is not None
    assert chosen.name == "brier"
    more = metric_for(GateSettings(), version_of((50, 30, 20), ("a", "b", "c")), kept)
    assert more is not None
    assert more.name == "accuracy"  # auc is of two classes


def test_costs_and_positive_class_are_completed() -> None:
    costs = metric_for(
        GateSettings.model_validate({"metric": "cost", "costs": {"yes": {"no": 5.0}}}),
        version_of((5, 5)),
        None,
    )
    assert costs is not None
    assert costs.costs == ((0.0, 1.0), (5.0, 0.0))
    rarer = metric_for(GateSettings(metric="f1"), version_of((10, 90)), None)
    assert rarer is not None
    assert rarer.positive == "no"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"metric": "squared"}, "gate.metric: squared is no metric of a classification; choose accuracy, "),
        (
            {"metric": "auc"},
            "gate.metric=auc: the dataset has 3 classes, and auc is of two; choose balanced_accuracy",
        ),
        ({"metric": "f1"}, "name the class that it is about, with gate.positive: a, b, c"),
        ({"metric": "f1", "positive": "z"}, "gate.positive: 'z' is no class of the dataset"),
        ({"metric": "cost", "costs": {"z": {"a": 1}}}, "gate.costs: 'z' is no class of the dataset"),
    ],
)
def test_a_metric_that_the_data_do_not_have_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        metric_for(GateSettings.model_validate(settings), version_of((4, 4, 4), ("a", "b", "c")), None)


def test_a_problem_with_a_single_metric_takes_no_other() -> None:
    texts = version_of((1, 1)).model_copy(update={"problem": "language_model"})
    assert metric_for(GateSettings(), texts, None) is None
    with pytest.raises(SettingError, match="compared by their own metric alone"):
        metric_for(GateSettings(metric="brier"), texts, None)


# --- looks and verdicts


def compared(
    folder: Path, settings: GateSettings, models: dict[str, np.ndarray], labels: np.ndarray
) -> Verdict:
    """The verdict on the model `candidate` with these probabilities of class "yes", from files as `evaluate` writes."""
    counts = np.bincount(labels, minlength=2)
    version = version_of(tuple(counts.tolist()))
    metric, problem = metric_for(settings, version, None), problem_named("classification")
    outputs = {
        name: np.stack([1 - chances, chances], axis=1).astype(np.float32) for name, chances in models.items()
    }
    baseline = problem.baseline(version, lambda: labels, len(labels), metric)
    assert baseline is not None
    outputs["baseline"] = baseline.predictions
    numbers, metric_values = metric_numbers(metric, labels, outputs, version, 0.95, {}, None)
    rows: dict[str, Any] = {
        "label": labels, "digest": np.arange(len(labels), dtype=np.uint64), "compared": np.ones(len(labels), bool)
    }  # fmt: skip
    for name, predictions in outputs.items():
        rows |= {name + ending: column for ending, column in problem.row_columns(labels, predictions).items()}
        rows |= {f"{name}_number": numbers[name]} if numbers else {}
    file = folder / "predictions.parquet"
    pq.write_table(pa.table(rows), file)
    scores = {name: score(labels, outputs[name], CLASSES, 0.95, 1.0, 1.0) for name in models}
    evaluation = Evaluation(
        rows=len(labels),
        candidate=scores["candidate"],
        champion=scores.get("champion"),
        champion_version="7" if "champion" in models else None,
        predictions=str(file),
        baseline=baseline.words,
        metric=metric,
        metric_values=metric_values,
        **paired(labels, outputs["candidate"], outputs.get("champion")).model_dump(),
    )

    def look(question: Any) -> Any:
        outcomes = read_outcomes("classification", file, "champion", metric)
        return take_look(question, "candidate", Reference("7", "champion"), outcomes, Reign(), settings)[0]

    looks = [look(settings.policy)] if "champion" in models else []
    if "champion" not in models or settings.policy == "unless_worse":
        nothing = read_outcomes("classification", file, "baseline", metric)
        looks.append(baseline_look(evaluation, "candidate", nothing, settings))
    return judge(evaluation, settings, tuple(looks))


def fraud(rows: int, seed: int, skill: float, share: float = 0.03) -> tuple[np.ndarray, np.ndarray]:
    """Labels with few frauds, and the probabilities of a model that ranks them with this skill."""
    rng = np.random.default_rng(seed)
    labels = (rng.random(rows) < share).astype(np.int64)
    return labels, 1 / (1 + np.exp(4 - skill * labels - rng.normal(size=rows)))


def test_a_fraud_model_beats_one_that_always_says_no(tmp_path: Path) -> None:
    """Both have the same accuracy; the one that ranks frauds first wins by auc, and the other is no first champion."""
    labels, ranked = fraud(3000, 1, skill=2.5)
    nothing = np.full(3000, 0.01)
    first = compared(tmp_path, GateSettings(), {"candidate": nothing}, labels)
    assert not first.promote
    assert (
        first.summary
        == "Not promoted: AUC 0.5000 on 3,000 rows, no better than always answering 'no' (0.5000)"
    )
    floor = first.rules[0].explanation
    assert "this metric decides, as only " in floor
    assert "% of the rows are 'yes'" in floor
    better = compared(tmp_path, GateSettings(), {"candidate": ranked, "champion": nothing}, labels)
    assert better.promote
    assert better.summary.startswith("Promoted over version 7: AUC 0.9")
    assert "against 0.5000 on 3,000 rows, more than chance explains" in better.summary
    assert better.metric is not None
    assert better.metric.name == "auc"
    assert Verdict.model_validate_json(better.model_dump_json()) == better


@pytest.mark.parametrize(
    "metric", ["auc", "balanced_accuracy", "f1", "log_loss", "brier", "cost", "accuracy"]
)
def test_a_better_model_is_promoted_and_a_worse_one_kept_out_by_every_metric(
    metric: str, tmp_path: Path
) -> None:
    rng = np.random.default_rng(2)
    labels = (rng.random(1500) < 0.4).astype(np.int64)
    good, bad = (
        np.clip(1 / (1 + np.exp(1 + 0.7 - skill * labels - rng.normal(size=1500))), 0.01, 0.99)
        for skill in (4.0, 1.5)
    )
    settings = GateSettings.model_validate({"metric": metric, "costs": {"yes": {"no": 3}}})
    up = compared(tmp_path, settings, {"candidate": good, "champion": bad}, labels)
    down = compared(tmp_path, settings, {"candidate": bad, "champion": good}, labels)
    assert (up.promote, down.promote) == (True, False)
    assert down.summary.startswith("Kept version 7: ")
    assert up.looks[0].difference == pytest.approx(-down.looks[0].difference)
    lax = settings.model_copy(update={"policy": "not_worse", "margin": 0.2})
    assert compared(tmp_path, lax, {"candidate": good, "champion": bad}, labels).promote


def test_floors_speak_of_the_metric(tmp_path: Path) -> None:
    labels, ranked = fraud(2000, 3, skill=2.0)
    refused = compared(tmp_path, GateSettings(floor=0.99), {"candidate": ranked}, labels)
    assert refused.summary.startswith("Not promoted: AUC 0.")
    assert refused.summary.endswith("on 2,000 rows is below the floor of 0.9900")
    loss = compared(tmp_path, GateSettings(metric="log_loss", floor=0.9), {"candidate": ranked}, labels)
    assert "share removed of the log loss of always answering 'no'" in loss.rules[0].explanation


@pytest.mark.parametrize("metric", ["auc", "log_loss"])
def test_guesses_seldom_pass_as_first_champion(metric: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    passed = 0
    for _ in range(60):
        labels = (rng.random(150) < 0.3).astype(np.int64)
        chances = np.clip(0.3 + 0.02 * rng.normal(size=150), 0.01, 0.99)
        settings = GateSettings.model_validate({"metric": metric})
        passed += compared(tmp_path, settings, {"candidate": chances}, labels).promote
    assert passed <= 10  # binomial(60, 0.05): more with a probability below 0.1 %


# --- policy "unless_worse"


def test_a_newer_model_takes_over_unless_it_is_shown_to_be_worse() -> None:
    settings = GateSettings.model_validate(ALONE | {"policy": "unless_worse"})
    equal = judged(from_counts((200, 8, 12, 22)), settings)
    assert equal.promote
    assert equal.summary == (
        "Promoted over version 7: the new model got 4 fewer of 242 rows right, not shown to be worse than version 7; "
        "at worst 5.15 points less accurate"
    )
    worse = judged(from_counts((200, 2, 18, 22)), settings)
    assert not worse.promote
    assert worse.summary == (
        "Kept version 7: the new model got 16 fewer of 242 rows right, and version 7 is shown to be better"
    )
    assert worse.rules[1].name == "unless_worse"
    assert worse.looks[0].statistic > 0


def test_when_nothing_could_be_shown_the_champion_stays() -> None:
    """After `gate.horizon` strict comparisons there is no level left, so no candidate could be refused."""
    evaluation = from_counts((200, 8, 12, 22))
    settings = GateSettings.model_validate(ALONE | {"policy": "unless_worse"})
    spent = Reign(forgotten=1, strict_spent=0.05)
    look, _ = take_look(
        "unless_worse", "candidate", Reference("7", "champion"), outcomes_of(evaluation), spent, settings
    )
    verdict = judge(evaluation, settings, (look,))
    assert not verdict.promote
    assert "can't be shown to be better, whatever the result" in verdict.rules[1].explanation


def test_nonsense_does_not_take_over_under_unless_worse(tmp_path: Path) -> None:
    """On few rows, a model that always says "no" is not shown to be worse than the champion."""
    labels = np.repeat([0, 1], [60, 12])
    champion = np.where(np.arange(72) >= 64, 0.9, 0.1)
    settings = GateSettings(policy="unless_worse", metric="accuracy")
    verdict = compared(tmp_path, settings, {"candidate": np.full(72, 0.1), "champion": champion}, labels)
    assert [(rule.name, rule.passed) for rule in verdict.rules][:3] == [
        ("floor", True),
        ("baseline", False),
        ("unless_worse", True),
    ]
    assert verdict.summary == (
        "Kept version 7: accuracy 83.33 % on 72 rows, no better than always answering 'no' (83.33 %)"
    )
