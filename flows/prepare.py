"""Prepare data: source files -> raw Parquet, a Ray task a shard -> validated dataset version."""

from pathlib import Path

from prefect import flow, unmapped
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from tasks.parquet import parquet
from tasks.transform import transform
from training.paths import Home
from training.plan import RunPlan
from training.prepare import plan_shards
from training.records import DatasetVersion, RawShard


@flow(name="prepare-data", flow_run_name="prepare-{plan.recipe.name}")
def prepare_data(plan: RunPlan) -> DatasetVersion:
    """Make the dataset version that the plan names."""
    folder = str(Home(Path(plan.home)).raw / plan.fingerprint[:16])
    shards = plan_shards(plan.files, plan.settings.data)
    raw: list[RawShard] = parquet.map(unmapped(plan), shards, unmapped(folder)).result()
    return transform(plan, raw, folder)


def prepare(plan: RunPlan) -> DatasetVersion:
    """Run :func:`prepare_data` over Ray, or over threads when training runs without it."""
    if not plan.settings.scaling.num_workers:
        return prepare_data(plan)
    from prefect_ray import RayTaskRunner
    from prefect_ray.context import remote_options

    # Ray's own retries would run a task twice behind Prefect's back. Tasks on Ray report to the one server that
    # this process talks to; without its address each Ray worker would start a server of its own.
    with (
        temporary_settings({PREFECT_API_URL: str(get_client(sync_client=True).api_url)}),
        remote_options(num_cpus=1, max_retries=0),
    ):
        return prepare_data.with_options(task_runner=RayTaskRunner())(plan)
