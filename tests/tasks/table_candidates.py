"""Candidates of XGBoost on a table of parcels: trained in this process, and compared with the champion of a home."""

from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import small_runs

from tasks.evaluate import evaluate
from tasks.register import register
from tasks.train import keep_plan
from tasks.verify.evidence import Evidence
from training.plan import RunPlan, identify
from training.recipe import load
from training.records import DatasetVersion, Evaluation, Release, TrainedModel
from training.settings.overrides import resolve
from training.storage.paths import Home
from training.storage.record_files import record_text
from training.supervision.launch import launch, make_job

RECIPE = """
from evergreen import Recipe, {problem}, Table, XGBoost

recipe = Recipe(
    name="parcels",
    source=Table({path!r}, target={target!r}{options}),
    problem={problem}(),
    trainer=XGBoost(max_depth=3, rounds={rounds}),
)
"""
COLOURS = ("blue", "green", "red")


class Candidate(NamedTuple):
    """A finished training on a table, and its evaluation against the champion."""

    home: Home
    plan: RunPlan
    version: DatasetVersion
    trained: TrainedModel
    evaluation: Evaluation

    def register(self) -> Release:
        return register.fn(self.plan, self.version, self.trained, self.evaluation)

    def evidence(self) -> Evidence:
        return Evidence(self.plan.paths, self.home)

    def keep(self, release: Release) -> None:
        """Write the record of the release, as the flow would."""
        file = self.plan.paths.release
        file.write_text(record_text(file.name, release, self.plan.paths.root.name))


def parcels(rows: int = 600, colours: tuple[str, ...] = COLOURS) -> pd.DataFrame:
    """Parcels whose price grows with the weight, and depends on the colour, which some rows lack."""
    random = np.random.default_rng(0)
    weight = random.uniform(0, 12, rows).round(3)
    colour = random.integers(0, len(colours), rows)
    price = 3 * weight + 4 * colour + random.normal(0, 0.5, rows)
    names = np.array([*colours, ""])[np.where(random.random(rows) < 0.1, len(colours), colour)]
    return pd.DataFrame({"weight": weight, "colour": names, "price": price.round(4)})


def candidate(
    home: Home,
    table: pd.DataFrame,
    problem: str = "Regression",
    target: str = "price",
    rounds: int = 12,
    options: str = "",
    **overrides: Any,
) -> Candidate:
    """Train on a table in this process, and compare with the champion of the home; `options` are further ones of Table.

    They are Python code, such as `, weight="counts"`.
    """
    folder = home.root / "files"
    folder.mkdir(parents=True, exist_ok=True)
    table.to_csv(folder / "parcels.csv", index=False)
    recipe_file = folder / "parcels.py"
    path = str(folder / "parcels.csv")
    recipe_file.write_text(
        RECIPE.format(problem=problem, path=path, target=target, options=options, rounds=rounds)
    )
    recipe, ref = load(str(recipe_file))
    base = {
        "scaling": {"num_workers": 0, "use_gpu": "no"},
        "tracking": {"system_metrics": False},
    }
    settings = resolve(recipe.settings, base, overrides)
    source_files = recipe.source.fetch(home.sources / ref.name)
    plan = identify(home, ref, settings, source_files)
    keep_plan(plan)
    version = small_runs.prepared_from(home, source_files, ref.name, settings.data, ref.problem)
    trained = launch(make_job(plan.run_key, plan.paths, plan.recipe, plan.settings, version))
    return Candidate(home, plan, version, trained, evaluate.fn(plan, version, trained))
