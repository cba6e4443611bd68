"""I10: the run's records are true and agree with each other."""

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from tasks.comparison import EVALUATION, as_champion_already, comparison_folders, owner_of
from tasks.gate import asks_for_look, has_earlier_words, has_first_rules, judge
from tasks.gate.measures import measure_of
from tasks.registry.aliases import versions_with_weights
from tasks.registry.unjudged import is_judged_elsewhere
from tasks.verify.evidence import Evidence
from tasks.verify.finding import NoEvidence, Outcome, judged
from tasks.verify.metrics import is_close
from training.data.manifest import read_parts
from training.errors import DataError
from training.identity import run_key
from training.problems import problem_named, problem_of
from training.records import Evaluation, Look, Verdict
from training.settings.schema import GateSettings
from training.storage.night_files import nights_of_home
from training.storage.record_files import DamagedError, read_record

_SAME = 1e-9

Pairs = dict[str, tuple[float, float]]  # (recorded, computed again), by name


def finished(run: Evidence) -> Outcome:
    """A finished run has the outputs of every step. For an unfinished run, the outcome names the next step."""
    made = {
        "train": (run.paths.model / "trained.json").is_file(),
        "evaluate": any((folder / EVALUATION).is_file() for folder in comparison_folders(run.paths)),
        "register": run.is_finished or _is_registered(run),
        "report": run.paths.report.is_file(),
    }
    missing = [step for step, done in made.items() if not done]
    if run.is_trial:
        trained = "trained" if made["train"] else "not trained to its end"
        return Outcome(True, f"a trial of the search {run.plan.search[:16]}, {trained}")
    if run.is_finished:
        return judged(
            [f"release.json exists, but no output of step {step}" for step in missing], "outputs of all steps"
        )
    if run.data_check is not None and run.data_check.outcome == "held" and not made["train"]:
        return Outcome(True, run.data_check.summary)
    return Outcome(False, f"not finished, the next step is {(missing or ['report'])[0]}{_last_end(run)}")


def _last_end(run: Evidence) -> str:
    """How the newest night of an unfinished run ended, else how its newest attempt failed; empty if neither is known.

    A night may end for another reason than an attempt of its training: by data, a server, a missing library.
    """
    nights = [
        night for night in nights_of_home(run.home, run.plan.model) if night.run_key == run.plan.run_key
    ]
    if nights and nights[-1].outcome != "running":
        return f"; the last night was {nights[-1].outcome}: {nights[-1].cause}"
    return f"; the last failure: {run.failures[-1].error}" if run.failures else ""


def key_follows(run: Evidence) -> Outcome:
    """The run key is the hash of the ingredients; the run's records and the name of its folder have this key."""
    key = run_key(run.plan.ingredients)
    carried = {"ingredients.json": run.plan.run_key, "the folder's name": run.paths.root.name}
    if (run.paths.model / "trained.json").is_file():
        carried["trained.json"] = run.trained.run_key
    if run.is_finished:
        carried["release.json"] = run.release.run_key
    wrong = [f"{where} has {name[:16]}" for where, name in carried.items() if name not in (key, key[:16])]
    return judged(
        [f"the ingredients give {key[:16]}", *wrong] if wrong else [], f"{key[:16]} in {len(carried)} places"
    )


def records_agree(run: Evidence) -> Outcome:
    """release.json agrees with trained.json and with the dataset."""
    release, trained, plan = run.release, run.trained, run.plan
    numbers, chosen = release.metrics, trained.selected()
    metric = f"validation_{problem_named(plan.recipe.problem).metric}"
    pairs: dict[str, tuple[object, object]] = {
        "weights_digest": (release.weights_digest, trained.weights_digest),
        "epochs": (release.epochs, len(trained.history)),
        "reproducible": (release.reproducible, trained.reproducible),
        "selected_epoch": (release.selected_epoch, trained.selected_epoch),
        "stopped": (release.stopped, trained.stopped),
        "dataset_fingerprint": (release.dataset_fingerprint, plan.fingerprint),
        "recipe": (release.recipe, plan.recipe.name),
        "validation_loss": (numbers.get("validation_loss"), chosen.validation_loss),
        metric: (numbers.get(metric), chosen.validation_score),
    }
    if plan.settings.training.keeps_best:
        best = min(trained.history, key=lambda row: (row.validation_loss, row.epoch))
        pairs["best epoch"] = (trained.selected_epoch, best.epoch)
    with suppress(NoEvidence):  # the dataset may have been removed since
        pairs["train_rows"] = (release.train_rows, run.dataset.rows("train"))
        pairs["test_rows"] = (release.test_rows, run.dataset.rows("test"))
    wrong = [
        f"{name} is {value}, elsewhere {other}" for name, (value, other) in pairs.items() if value != other
    ]
    if release.verdict.promote and release.alias == "challenger":
        wrong.append("the verdict is to promote, and the alias challenger")
    return judged(wrong, f"{len(pairs)} facts agree in release.json, trained.json and the dataset")


def verdict_recorded(run: Evidence) -> Outcome:
    """MLflow's run and model version have the same verdict as release.json."""
    verdict = run.release.verdict
    wrong = []
    if _parsed(run.store.artifact("verdict.json")) != verdict:
        wrong.append("verdict.json in MLflow differs from release.json")
    word = "promote" if verdict.promote else "keep"
    # The version of another home that made the same model keeps that home's verdict.
    client, model = run.store.client, run.store.plan.model
    for version in run.versions:
        if is_judged_elsewhere(client, run.home, model, str(version.version)):
            continue
        if (tag := version.tags.get("evergreen.verdict")) != word:
            wrong.append(f"version {version.version} says {tag}, release.json {word}")
    return judged(wrong, f"{word} in release.json, in MLflow's verdict.json and on the version")


def _parsed(content: object) -> Verdict | None:
    """The verdict in MLflow, or None if it is invalid; fields that earlier versions did not write get defaults."""
    try:
        return Verdict.model_validate(content)
    except ValueError:
        return None


def verdict_follows(run: Evidence) -> Outcome:
    """The gate, applied again to the recorded evaluation under the recorded rules, reaches the same verdict."""
    verdict, evaluation = run.release.verdict, _evaluation(run)
    settings = GateSettings.model_validate(verdict.policy)
    if not verdict.looks and asks_for_look(evaluation, settings):
        raise NoEvidence("the verdict was reached under the rules of an earlier version of Evergreen")
    again = judge(evaluation, settings, verdict.looks)
    passed = [f"{rule.name} {'passed' if rule.passed else 'failed'}" for rule in again.rules]
    recorded = verdict.model_dump(mode="json", exclude_unset=True)
    same = any(
        _of_record(variant.model_dump(mode="json"), recorded) == recorded
        for variant in (again, *_as_champion_already(again))
    )
    other_words = has_first_rules(verdict) or has_earlier_words(verdict)
    if same or (other_words and _decision(again) == _decision(verdict)):
        return Outcome(True, ", ".join(passed))
    word = "promote" if again.promote else "keep"
    return Outcome(False, f"the gate now says {word} ({', '.join(passed)}), the recorded verdict differs")


def _as_champion_already(verdict: Verdict) -> tuple[Verdict, ...]:
    """`verdict` with the summary of :func:`as_champion_already`, if the candidate passed the gate; else none."""
    return (as_champion_already(verdict),) if verdict.promote else ()


def _of_record(value: Any, recorded: Any) -> Any:
    """`value` with the fields of `recorded` alone: earlier versions of Evergreen did not record newer fields."""
    if isinstance(value, dict) and isinstance(recorded, dict):
        return {name: _of_record(value.get(name), part) for name, part in recorded.items()}
    if isinstance(value, list) and isinstance(recorded, list) and len(value) == len(recorded):
        return [_of_record(*pair) for pair in zip(value, recorded, strict=True)]
    return value


def _decision(verdict: Verdict) -> tuple[bool, list[tuple[str, bool, float, float]]]:
    """A verdict without its texts: the decision, and the numbers and outcome of each rule."""
    rules = [(rule.name, rule.passed, rule.value, rule.limit) for rule in verdict.rules]
    return verdict.promote, rules


def scores_follow(run: Evidence) -> Outcome:
    """The scores, and what the looks counted, match a new computation from predictions and labels."""
    evaluation = _evaluation(run)
    problem = problem_of(evaluation.candidate)
    file = run.paths.evaluation / _compared_with(run) / "predictions.parquet"
    try:
        table = pq.read_table(file)
        labels = np.concatenate(
            [part["label"].to_numpy() for part in read_parts(run.dataset, "test", ["label"])]
        )
    except (OSError, DataError) as error:
        raise NoEvidence(f"predictions can't be compared ({error})") from error
    if not np.array_equal(table["label"].to_numpy(), labels):
        return Outcome(False, f"{file} has labels that differ from those of the dataset's test rows")
    if "compared" in table.column_names:  # earlier versions of Evergreen compared all rows
        labels = labels[table["compared"].to_numpy()]
        table = table.filter(table["compared"])
    columns = {name: table[name].to_numpy() for name in table.column_names}
    pairs = problem.recounted(labels, columns, evaluation)
    again = {name: value for name, (_, value) in pairs.items()}
    for name in again.keys() & run.release.metrics.keys():
        pairs[f"released {name}"] = (run.release.metrics[name], again[name])
    looks = {
        f"{name} of question {look.question}": pair
        for look in run.release.verdict.looks
        for name, pair in _recounted(look, labels, columns, evaluation).items()
    }
    wrong = _wrong(pairs, _is_same) + _wrong(looks, _is_same)
    if _wrong(looks, _is_same) and _is_recorded_elsewhere(run):
        # A difference of mean errors is rounded as these errors are.
        scale = max(1.0, *(look.reference_error for look in run.release.verdict.looks))
        wrong = _wrong(pairs, _is_same) + _wrong(
            looks, lambda recorded, computed: is_close(recorded / scale, computed / scale)
        )
    figure = problem.figure(evaluation.candidate)
    return judged(wrong, f"{problem.metric_word} {figure} on {len(labels):,} rows")


def _recounted(
    look: Look, labels: npt.NDArray[Any], columns: Mapping[str, npt.NDArray[Any]], evaluation: Evaluation
) -> Pairs:
    if look.baseline:
        return measure_of(look).recounted(look, labels, columns, "baseline")
    other = "anchor" if look.reference_version == evaluation.anchor_version else "champion"
    return measure_of(look).recounted(look, labels, columns, other)


def _wrong(pairs: Pairs, agree: Callable[[float, float], bool]) -> list[str]:
    return [
        f"{name} is recorded as {recorded}, computed {computed}"
        for name, (recorded, computed) in pairs.items()
        if not agree(recorded, computed)
    ]


def _is_same(recorded: float, computed: float) -> bool:
    return math.isclose(recorded, computed, rel_tol=_SAME, abs_tol=_SAME)


def _is_recorded_elsewhere(run: Evidence) -> bool:
    """Whether the looks may be those of another run or another home with the same weights.

    A pair of models is judged once: the run then used the recorded looks, which other predictions gave. The version of
    the other run may be deleted since; a forced run repeats another run.
    """
    store, digest = run.store, run.release.weights_digest
    if "forced" in run.plan.ingredients:
        return True
    alike = versions_with_weights(store.client, store.plan.model, digest)
    return any(
        int(version.version) < int(run.release.version)
        or (str(version.version) == run.release.version and not store.is_ours(version))
        for version in alike
    )


def _is_registered(run: Evidence) -> bool:
    return bool(run.versions)


def _compared_with(run: Evidence) -> str:
    return run.release.evaluation


def _evaluation(run: Evidence) -> Evaluation:
    folder = run.paths.evaluation / _compared_with(run)
    try:
        return read_record(folder / EVALUATION, Evaluation, owner_of(folder))
    except FileNotFoundError:
        raise NoEvidence(f"{folder / EVALUATION} is missing", ok=False) from None
    except DamagedError as error:
        raise NoEvidence(f"{error.file} can't be read ({error.what}), see I7") from error
