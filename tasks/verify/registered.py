"""I2: the run has one version, a decision on record set its alias, and the registered model matches the weights."""

from typing import Any

import numpy.typing as npt

from tasks.model_formats.base import check_same
from tasks.registry.aliases import (
    CHALLENGER,
    CHAMPION,
    PREVIOUS,
    TURN_TAG,
    WEIGHTS_TAG,
    load_version,
    version_tags,
)
from tasks.registry.decisions import Decision, read_decisions
from tasks.verify.evidence import Evidence
from tasks.verify.finding import NoEvidence, Outcome, judged
from tasks.verify.part_inputs import input_columns, inputs_of
from training.data.manifest import read_parts
from training.errors import DataError, EvergreenError
from training.recipe import reload_once
from training.records import NOT_AGAIN
from training.trainers.base import inspection_of

_ROWS = 64


def one_version(run: Evidence) -> Outcome:
    """The registry has exactly one version with the run key: the released version, with this run's weights."""
    versions = run.versions
    listed = ", ".join(
        f"{version.version} ({version.tags.get(WEIGHTS_TAG, 'no weights')[:16]})" for version in versions
    )
    if not run.is_finished:
        return Outcome(
            None if len(versions) < 2 else False, f"not finished; versions so far: {listed or 'none'}"
        )
    release = run.release
    right = (
        len(versions) == 1
        and str(versions[0].version) == release.version
        and versions[0].tags.get(WEIGHTS_TAG) == release.weights_digest
    )
    wanted = "" if right else f"; release.json names {release.version} ({release.weights_digest[:16]})"
    return Outcome(right, f"{release.model} version {listed or 'none'}{wanted}")


def alias(run: Evidence) -> Outcome:
    """The champion, and the aliases of this run's version, are those that the decisions on record lead to."""
    release, now = run.release, run.store.aliases
    decisions = _decisions_on_record(run)
    decided = replayed(decisions)
    action = "promote" if release.verdict.promote else "keep"
    problems = []
    if not _is_decided(decisions, action, release.version):
        problems.append(f"no decision on record to {action} version {release.version}")
    if now[CHAMPION] != decided[CHAMPION]:
        problems.append(
            f"champion is version {now[CHAMPION]}, the recorded decisions lead to {decided[CHAMPION]}"
        )
    ours, should = (_aliases_of(release.version, aliases) for aliases in (now, decided))
    if ours != should:
        problems.append(f"version {release.version} is {ours}, the recorded decisions lead to {should}")
    if late := _moved_late(run, decisions, now[CHAMPION]):
        return Outcome(False, late)
    if problems and run.store.shared:
        raise NoEvidence(
            f"{'; '.join(problems)}. Other homes share the store, and record their decisions themselves"
        )
    return judged(problems, f"verdict {action}; version {release.version} is {ours}")


def _moved_late(run: Evidence, decisions: list[Decision], champion: str | None) -> str | None:
    """The problem when the champion was set in an earlier turn than the last move on record; None without problem."""
    moves = [(decision.turn, decision.to) for decision in decisions if decision.turn is not None]
    if not moves or champion is None or moves[-1][1] == champion:
        return None
    text = version_tags(run.store.client, run.store.plan.model, champion).get(TURN_TAG, "")
    turn, version = moves[-1]
    if not text.isdecimal() or int(text) >= turn:
        return None
    return (
        f"champion is version {champion} of turn {text}, though version {version} replaced it in turn {turn}: "
        "a process that had lost the registry lock moved the alias back"
    )


def same_answers(run: Evidence) -> Outcome:
    """On test rows, the registered model, downloaded from MLflow, gives the same predictions as the weights."""
    number, inputs, store = run.release.version, _test_inputs(run), run.store
    try:
        recipe = reload_once(run.plan.recipe, run.paths.recipe)
        predict = inspection_of(run.plan.settings.trainer).predictor(recipe, run.dataset, run.trained)
    except EvergreenError as error:
        raise NoEvidence(f"the weights can't predict, see I1 and I7 ({error})") from error
    try:
        check_same(predict, load_version(run.home, store.plan.model, number).predict, inputs)
    except EvergreenError as error:
        return Outcome(False, str(error))
    what = "of a probability" if run.dataset.classes else "of the largest prediction"
    return Outcome(True, f"version {number} on {len(inputs)} test rows, to 0.0001 {what}")


def _decisions_on_record(run: Evidence) -> list[Decision]:
    lines = read_decisions(run.home, run.plan.model)
    if not lines.file.exists():
        missing = f"no decision on record: {lines.file} is missing"
        raise NoEvidence(missing, ok=None if run.store.shared else False)
    if lines.damage:
        raise NoEvidence(f"{lines.file} is damaged ({lines.damage})", ok=False)
    return lines.records


def replayed(decisions: list[Decision]) -> dict[str, str | None]:
    """The aliases after these decisions; a decision that is recorded twice after a crash has the effect of one."""
    aliases: dict[str, str | None] = {CHAMPION: None, CHALLENGER: None, PREVIOUS: None}
    for decision in decisions:
        if decision.action == "keep":
            if decision.why != NOT_AGAIN:
                aliases[CHALLENGER] = decision.candidate
            continue
        if decision.before is not None:
            aliases[PREVIOUS] = decision.before
        aliases[CHAMPION] = decision.to
        if decision.action == "promote" and aliases[CHALLENGER] == decision.to:
            aliases[CHALLENGER] = None
    return aliases


def _is_decided(decisions: list[Decision], action: str, version: str) -> bool:
    kept = any(
        decision.candidate == version and (action == "keep" or decision.why == NOT_AGAIN)
        for decision in decisions
    )
    return kept or any(decision.to == version for decision in decisions)


def _aliases_of(version: str, aliases: dict[str, str | None]) -> str:
    return " and ".join(sorted(alias for alias, number in aliases.items() if number == version)) or "none"


def _test_inputs(run: Evidence) -> npt.NDArray[Any]:
    try:
        part = next(read_parts(run.dataset, "test", input_columns(run.dataset))).slice(0, _ROWS)
    except (DataError, StopIteration) as error:
        raise NoEvidence(f"no test rows to predict ({error})") from error
    return inputs_of(part, run.dataset)
