"""Looks (comparisons) and reigns stored in the model registry, so that every home that shares it continues them.

A reign is the time in which one version is the reference of comparisons. Tags of a version hold the looks it was
judged by, and the error level that comparisons with it have spent:

evergreen.reign.<question>              of a reference: the state of its reign (:class:`tasks.gate.reign.Reign`)
evergreen.look.<question>.<reference>   of a candidate: its newest look against that version
evergreen.standing                      of a promoted version: its anchor, and the selection bias of its accuracy

The order of writes makes an interruption at any point safe: first the look is recorded, then the reign that contains
the look, then the alias moves. A repeated comparison (same question, models and rows) reuses the recorded look and
spends nothing.
"""

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.gate import asks_for_baseline, asks_for_look, look_of
from tasks.gate.baseline import baseline_look
from tasks.gate.look import Reference, key_of, take_look
from tasks.gate.outcomes import Outcomes, Side, read_outcomes
from tasks.gate.reign import DamagedReignError, Reign, read_reign, rebuilt_reign
from tasks.registry.aliases import (
    CHAMPION,
    PREVIOUS,
    WEIGHTS_TAG,
    champion_of,
    version_tags,
    versions_with_weights,
)
from tasks.registry.lock import Lease
from tasks.registry.safe_loading import THRESHOLD_TAG
from tasks.trackers.paged_search import all_pages
from training.records import Evaluation, Look, Question, Record, Verdict
from training.settings.schema import GateSettings
from training.storage.files import digest_json

if TYPE_CHECKING:
    from mlflow import MlflowClient

log = logging.getLogger("evergreen.reign")

REIGN_TAG, LOOK_TAG, STANDING_TAG = "evergreen.reign", "evergreen.look", "evergreen.standing"


class Standing(Record):
    """Facts about a champion that were fixed when it was promoted.

    `anchor` is the version that the policies "not_worse" and "unless_worse" compare candidates with (None: itself),
    `anchor_identity` the digest of the anchor's weights. `excess` is the selection bias: how much being chosen on the
    rows of `rows_digest` raises the version's measured accuracy on these rows.
    """

    anchor: str | None = None
    anchor_identity: str | None = None
    excess: float = 0.0
    rows_digest: str | None = None


class Registry:
    """Reads and writes the looks and reigns of one registered model."""

    def __init__(self, client: "MlflowClient", model: str) -> None:
        self.client, self.model = client, model

    def identity(self, number: str) -> str:
        """Digest of a version's weights, or model name and number of a version that Evergreen did not register.

        With a threshold, the digest of weights and threshold, on which the version's answers depend.
        """
        tags = version_tags(self.client, self.model, number)
        weights = tags.get(WEIGHTS_TAG, f"{self.model} version {number}")
        return weights if THRESHOLD_TAG not in tags else digest_json([weights, tags[THRESHOLD_TAG]])

    def standing(self, number: str) -> Standing:
        """The :class:`Standing` of version `number`; the default one when the tag is missing or damaged."""
        text = version_tags(self.client, self.model, number).get(STANDING_TAG)
        try:
            return Standing.model_validate_json(text) if text else Standing()
        except ValueError:
            log.warning("%s version %s: tag %s is damaged, ignored", self.model, number, STANDING_TAG)
            return Standing()

    def reign(self, question: Question, number: str) -> Reign:
        """State of the reign of version `number`. A damaged state is rebuilt from the looks of its candidates."""
        tag, text = f"{REIGN_TAG}.{question}", self._text(question, number)
        if text is None:
            return Reign()
        try:
            return read_reign(text)
        except DamagedReignError as error:
            log.warning(
                "%s version %s: tag %s is damaged (%s); rebuilt from the looks of its candidates",
                self.model,
                number,
                tag,
                error,
            )
            return self._rebuilt(question, number)

    def _rebuilt(self, question: Question, number: str) -> Reign:
        tag = f"{LOOK_TAG}.{question}.{number}"
        versions = all_pages(self.client.search_model_versions, f"name = '{self.model}'")
        return rebuilt_reign(
            look for version in versions if (look := _look_in(version.tags, tag)) is not None
        )

    def recorded_look(self, question: Question, weights: str, reference: str, key: str) -> Look | None:
        """The look with this key at any version with these weights, or None.

        A forced run registers the same weights again as another version, which does not get a second look.
        """
        tag = f"{LOOK_TAG}.{question}.{reference}"
        looks = (
            _look_in(version.tags, tag) for version in versions_with_weights(self.client, self.model, weights)
        )
        return next((look for look in looks if look is not None and look.key == key), None)

    def record(self, lease: Lease, candidate: str, reference: str, look: Look) -> None:
        """Record a look: first with the candidate, then in the reign. Recording it again changes nothing."""
        tag = f"{LOOK_TAG}.{look.question}.{reference}"
        lease.check()
        self.client.set_model_version_tag(self.model, candidate, tag, look.model_dump_json())
        state = self.reign(look.question, reference).after(look)
        while self._text(look.question, reference) != state.text():
            lease.check()
            self._write(look.question, reference, state)
            # Another home may have written meanwhile: unite both states, and write again until they agree.
            state = self.reign(look.question, reference).united(state)

    def _text(self, question: Question, number: str) -> str | None:
        return version_tags(self.client, self.model, number).get(f"{REIGN_TAG}.{question}")

    def _write(self, question: Question, number: str, reign: Reign) -> None:
        self.client.set_model_version_tag(self.model, number, f"{REIGN_TAG}.{question}", reign.text())


def take_looks(
    lease: Lease, number: str, weights: str, evaluation: Evaluation, settings: GateSettings
) -> tuple[Look, ...]:
    """Take the looks that the policy requires for candidate version `number`, and record them in the registry.

    Under the policies "not_worse" and "unless_worse", a candidate that passes is also tested for "better": one that
    passes both becomes the anchor. The look at the model that has learned nothing is not recorded: it can be taken
    again.
    """
    looks: list[Look] = []
    if asks_for_look(evaluation, settings):
        has_anchor = settings.policy != "better" and evaluation.anchor_version
        side: Side = "anchor" if has_anchor else "champion"
        version = evaluation.anchor_version if has_anchor else evaluation.champion_version
        assert version is not None
        outcomes = _outcomes(evaluation, side)
        looks = [_look(lease, settings.policy, number, weights, version, outcomes, settings)]
        if settings.policy != "better" and looks[0].passed:
            looks.append(_look(lease, "better", number, weights, version, outcomes, settings))
    if asks_for_baseline(evaluation, settings):
        looks.append(baseline_look(evaluation, weights, _outcomes(evaluation, "baseline"), settings))
    return tuple(looks)


def _outcomes(evaluation: Evaluation, side: Side) -> Outcomes:
    problem, predictions = evaluation.candidate.problem, Path(evaluation.predictions)
    return read_outcomes(problem, predictions, side, evaluation.metric)


def _look(
    lease: Lease,
    question: Question,
    number: str,
    weights: str,
    version: str,
    outcomes: Outcomes,
    settings: GateSettings,
) -> Look:
    registry = Registry(lease.client, lease.model)
    candidate = registry.identity(number)
    key = key_of(question, candidate, outcomes, settings)
    look = registry.recorded_look(question, weights, version, key)
    if look is None:
        standing = registry.standing(version)
        # The excess is one of the accuracy.
        same_rows = standing.rows_digest == outcomes.rows_digest() and not outcomes.about
        excess = standing.excess if same_rows else 0.0
        reference = Reference(version, registry.identity(version), excess)
        reign = registry.reign(question, version)
        look, _ = take_look(question, candidate, reference, outcomes, reign, settings)
    else:
        log.info(
            "the weights of version %s were compared with version %s before: the recorded comparison is used",
            number,
            version,
        )
    registry.record(lease, number, version, look)
    return look


def settle_standing(lease: Lease, number: str, evaluation: Evaluation, verdict: Verdict) -> None:
    """Record the :class:`Standing` of `number`, before the alias moves; does nothing unless `verdict` promotes.

    A candidate that was shown to be better than the anchor becomes the anchor, and so does one that was shown to be
    better than the champion, as under policy "better": with the old anchor, a later "not_worse" would allow a loss
    against the better champion. Otherwise the anchor stays the same.
    """
    champion = evaluation.champion_version
    if not verdict.promote or champion is None:
        return
    client, model = lease.client, lease.model
    registry = Registry(client, model)
    better = look_of(verdict.looks, "better")
    anchor: str | None = evaluation.anchor_version or anchor_of(client, model, champion) or champion
    if better is not None and better.passed and better.reference_version in (anchor, champion):
        anchor = None
    standing = Standing(
        anchor=anchor,
        anchor_identity=registry.identity(anchor) if anchor else None,
        excess=verdict.choice.accuracy - verdict.choice.corrected_accuracy if verdict.choice else 0.0,
        rows_digest=verdict.looks[0].rows_digest if verdict.looks else None,
    )
    lease.check()
    client.set_model_version_tag(model, number, STANDING_TAG, standing.model_dump_json())


def anchor_of(client: "MlflowClient", model: str, champion: str) -> str | None:
    """The version that another policy than "better" compares with while `champion` is champion; None: with it.

    Also None, with a warning, when the registry no longer has the anchor with the recorded weights.
    """
    from mlflow.exceptions import MlflowException

    registry = Registry(client, model)
    standing = registry.standing(champion)
    if standing.anchor in (None, champion):
        return None
    assert standing.anchor is not None
    try:
        if registry.identity(standing.anchor) == standing.anchor_identity:
            return standing.anchor
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
    log.warning(
        "%s: the anchor, version %s, is not in the registry any more; the champion, version %s, is used instead",
        model,
        standing.anchor,
        champion,
    )
    return None


def is_anchor(client: "MlflowClient", model: str, number: str) -> bool:
    """Whether version `number` is the anchor of the champion, or of the version that a rollback would restore."""
    served = (champion_of(client, model, alias) for alias in (CHAMPION, PREVIOUS))
    return any(version is not None and anchor_of(client, model, version) == number for version in served)


def _look_in(tags: dict[str, str], tag: str) -> Look | None:
    try:
        return Look.model_validate_json(tags[tag]) if tag in tags else None
    except ValueError:
        log.warning("tag %s is damaged, ignored", tag)
        return None
