"""I9, for MLflow: no run has the status RUNNING after its process has ended."""

from tasks.verify.evidence import Evidence
from tasks.verify.finding import NoEvidence, Outcome, judged
from tasks.verify.residue import is_at_work
from training.storage.paths import TRAINED


def mlflow_run(run: Evidence) -> Outcome:
    """The run's experiment has exactly one run with the run key, and its status agrees with the run's actual state.

    A run that was registered before `tracking.experiment` changed has a run in the former experiment, too.
    """
    store = run.store
    if not store.runs and not run.is_finished:
        raise NoEvidence("not finished, and not in MLflow yet")
    status = store.run.info.status
    in_mlflow = f"{store.run.info.run_id} is {status}"
    twins = len(store.runs_of_experiment)
    problems = [] if twins == 1 else [f"{twins} MLflow runs have this run key"]
    if run.is_finished and store.run.info.run_id != run.release.mlflow_run_id:
        problems.append(f"release.json names MLflow run {run.release.mlflow_run_id}, MLflow has {in_mlflow}")
    done = run.is_finished or (run.is_trial and (run.paths.model / TRAINED).is_file())
    if done != (status == "FINISHED"):
        problems.append(f"{in_mlflow}, but the run is {'finished' if done else 'not finished'}")
    elif status == "RUNNING":
        problems.append(f"{in_mlflow}, but no process works on it")
    if problems and status == "RUNNING" and is_at_work(run, run.plan.recipe.name):
        raise NoEvidence(f"{in_mlflow}, and a process works on it")
    return judged(problems, in_mlflow)


def others_running(run: Evidence) -> Outcome:
    """No other MLflow run of this home has the status RUNNING without a process that works on its recipe."""
    ours = {tracked_run.info.run_id for tracked_run in run.store.runs_of_experiment}
    running = [tracked_run for tracked_run in run.store.running if tracked_run.info.run_id not in ours]
    dead = [
        f"{tracked_run.info.run_name} ({tracked_run.info.run_id}) is RUNNING, but no process works on it"
        for tracked_run in running
        if not is_at_work(run, tracked_run.data.tags.get("evergreen.recipe", ""))
    ]
    return judged(dead, f"{len(running) or 'none'} RUNNING")
