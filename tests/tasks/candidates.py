"""Candidates for promotion (finished trainings), and the registry in which they are registered."""

import json
from typing import Any, NamedTuple

from mlflow import MlflowClient
from tracked import planned

from tasks.evaluate import evaluate
from tasks.register import register
from tasks.registry.aliases import CHALLENGER, CHAMPION, PREVIOUS, champion_of
from tasks.trackers.mlflow_run import RUN_KEY_TAG
from training.plan import RunPlan
from training.records import DatasetVersion, Evaluation, Release, TrainedModel
from training.storage.paths import Home
from training.supervision.launch import launch, make_job


class Candidate(NamedTuple):
    """A finished training, and its evaluation against the champion."""

    plan: RunPlan
    version: DatasetVersion
    trained: TrainedModel
    evaluation: Evaluation

    def register(self, **gate: Any) -> Release:
        settings = self.plan.settings
        changed = settings.model_copy(update={"gate": settings.gate.model_copy(update=gate)})
        plan = self.plan.model_copy(update={"settings": changed})
        return register.fn(plan, self.version, self.trained, self.evaluation)

    def compared_again(self) -> "Candidate":
        return self._replace(evaluation=evaluate.fn(self.plan, self.version, self.trained))

    def under(self, model: str) -> "Candidate":
        """The candidate under another model name, with an MLflow run of its own."""
        settings = self.plan.settings
        named = settings.model_copy(
            update={"tracking": settings.tracking.model_copy(update={"model": model, "experiment": model})}
        )
        return self._replace(plan=self.plan.model_copy(update={"settings": named}))


class World(NamedTuple):
    """A home whose champion of `model` is version 2 and previous champion version 1; both are the same poor model."""

    home: Home
    client: MlflowClient
    model: str
    candidates: tuple[Candidate, Candidate]

    @property
    def candidate(self) -> Candidate:
        return self.candidates[0]

    def aliases(self) -> tuple[str | None, ...]:
        return tuple(
            champion_of(self.client, self.model, alias) for alias in (CHAMPION, PREVIOUS, CHALLENGER)
        )

    def versions(self) -> list[int]:
        wanted = f"name = '{self.model}' and tags.`{RUN_KEY_TAG}` = '{self.candidate.plan.run_key}'"
        return [int(version.version) for version in self.client.search_model_versions(wanted)]

    def decisions(self) -> list[tuple[str, str | None, str]]:
        file = self.home.root / "decisions" / f"{self.model}.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        return [
            (decision["action"], decision.get("from"), decision.get("to") or decision["candidate"])
            for decision in lines
        ]


def trained_candidate(
    home: Home,
    data: dict[str, Any] | None = None,
    gate: dict[str, Any] | None = None,
    seed: int = 0,
    **training: Any,
) -> Candidate:
    plan, version = planned(home, training=training, data=data or {}, gate=gate or {}, seed=seed)
    trained = launch(make_job(plan.run_key, plan.paths, plan.recipe, plan.settings, version, plan.initial))
    return Candidate(plan, version, trained, evaluate.fn(plan, version, trained))
