"""The flow that prepares data: source files -> raw Parquet, one Ray task per shard -> validated dataset version."""

import logging
from pathlib import Path
from urllib.parse import urlsplit

from prefect import flow, unmapped
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from tasks.download import READ_IN_PLACE, check_unchanged
from tasks.parquet import parquet
from tasks.transform import transform
from training.data.preparation.prepare import plan_shards
from training.plan import RunPlan
from training.ray_cluster.capacity import has_other_nodes, others_see_this_disk
from training.records import DatasetVersion, RawShard
from training.storage.files import remove_folder
from training.storage.paths import Home

log = logging.getLogger("evergreen.prepare")


# No retries of this flow: the calling flow is retried.
@flow(name="prepare-data", flow_run_name="prepare-{plan.recipe.name}", retries=0)
def prepare_data(plan: RunPlan) -> DatasetVersion:
    """Make the dataset version that the plan names."""
    folder = str(Home(Path(plan.home)).raw_rows(plan.recipe.name, plan.fingerprint))
    if plan.files.kind in READ_IN_PLACE:
        remove_folder(Path(folder))  # an interrupted start may have read other content
    shards = plan_shards(plan.files, plan.settings.data, heavy=bool(plan.recipe.transform))
    raw: list[RawShard] = parquet.map(unmapped(plan), shards, unmapped(folder)).result()
    check_unchanged(plan)
    return transform(plan, raw, folder)


def prepare(plan: RunPlan) -> DatasetVersion:
    """Run :func:`prepare_data` on Ray, or on threads.

    Threads are used when training runs without Ray, when there is only one shard, and when the other nodes of the Ray
    cluster can't reach Prefect's server or this machine's disk.
    """
    if (
        not plan.settings.scaling.num_workers
        or not others_see_this_disk(plan.settings)
        or len(plan_shards(plan.files, plan.settings.data, heavy=bool(plan.recipe.transform))) == 1
    ):
        return prepare_data(plan)  # importing Ray and Prefect in a worker would take longer than the shard
    from prefect_ray import RayTaskRunner
    from prefect_ray.context import remote_options

    server = str(get_client(sync_client=True).api_url)
    if plan.settings.ray.address and is_loopback(server) and has_other_nodes():
        log.warning(
            "Prefect's server (%s) can't be reached from the other nodes of the Ray cluster, so raw rows are "
            "written by this process alone. Set PREFECT_API_URL to a server that they can reach.",
            server,
        )
        return prepare_data(plan)
    # Ray must not retry: it would run a task twice without Prefect's knowledge. Tasks on Ray report to the Prefect
    # server of this process; without its address, each Ray worker would start a separate server.
    with (
        temporary_settings({PREFECT_API_URL: server}),
        remote_options(num_cpus=1, max_retries=0),
    ):
        return prepare_data.with_options(task_runner=RayTaskRunner())(plan)


def is_loopback(url: str) -> bool:
    """Whether the server at `url` can be reached from this machine only."""
    host = urlsplit(url).hostname or ""
    return host == "localhost" or host.startswith("127.") or host == "::1"
