"""In: source files. Out: raw rows as typed Parquet, one schema, one file a shard.

Shards are independent, so they fan out over Ray (or threads). Fails with DataError when a source file is damaged.
"""

from pathlib import Path

from prefect import task
from prefect.cache_policies import NO_CACHE

from tasks.retry import worth_retrying
from training.plan import RunPlan
from training.prepare import Shard, write_raw
from training.records import RawShard


@task(
    name="parquet",
    task_run_name="parquet-{shard.index}",
    retries=2,
    retry_delay_seconds=1,
    retry_condition_fn=worth_retrying,
    cache_policy=NO_CACHE,
    persist_result=False,
)
def parquet(plan: RunPlan, shard: Shard, folder: str) -> RawShard:
    """Write one shard of raw rows, or find it written."""
    return write_raw(plan.files, shard, plan.settings.data, Path(folder))
