"""In: tonight's scores. Out: a sentence if an unchanged champion scores otherwise than in the recipe's last run.

A champion's weights stay, so another score comes of other test rows, and says nothing about the model.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.comparison import PREDICTIONS
from tasks.report_page.wording import was_promoted
from training.data.row_digests import row_digests
from training.identity import runs_of
from training.plan import RunPlan
from training.problems import problem_of
from training.records import DatasetVersion, Evaluation, Release
from training.storage.paths import Home, RunPaths
from training.storage.record_files import find_record


def champion_jump(
    plan: RunPlan, version: DatasetVersion, evaluation: Evaluation, metrics: dict[str, float]
) -> str:
    """The sentence; empty if the champion is another one, or the earlier score lies in tonight's interval.

    `metrics` are those of tonight's release. The earlier score and test rows are those of the newest other run of the
    recipe with a verdict on this champion.
    """
    champion = evaluation.champion
    if champion is None or (earlier := _earlier(plan, evaluation)) is None:
        return ""
    run, release, name = earlier
    problem = problem_of(champion)
    then, now = release.metrics[name], metrics[f"champion_{problem.metric}"]
    if champion.low <= then <= champion.high:
        return ""
    rows = _rows(run, release, version)
    return (
        f"the champion's {problem.metric_word} was {problem.spell(then)} in the last run and is {problem.spell(now)} "
        f"now, with the same weights{rows}"
    )


def _earlier(plan: RunPlan, evaluation: Evaluation) -> tuple[RunPaths, Release, str] | None:
    """Run, release and name of the metric that is the score of tonight's champion; None if there is none."""
    metric = problem_of(evaluation.candidate).metric
    for run in reversed(runs_of(Home(Path(plan.home)), plan.recipe.name)):
        release = None if run.root == plan.paths.root else find_record(run.release, Release, run.root.name)
        if release is None or release.model != plan.model:
            continue
        if was_promoted(release):
            compared, name = release.version, metric
        else:
            compared, name = release.verdict.champion_version or "", f"champion_{metric}"
        same = compared == evaluation.champion_version and name in release.metrics
        return (run, release, name) if same else None
    return None


def _rows(run: RunPaths, release: Release, version: DatasetVersion) -> str:
    """How many test rows are new since that run; empty if its predictions are gone."""
    try:
        before = pq.read_table(run.evaluation / release.evaluation / PREDICTIONS, columns=["digest"])
    except (OSError, pa.ArrowException):
        return ""
    digests: npt.NDArray[np.uint64] = row_digests(version, "test")
    new = int((~np.isin(digests, before["digest"].to_numpy().astype(np.uint64))).sum())
    return f"; {new:,} of {len(digests):,} test rows are new"
