"""In: source files. Out: raw rows as typed Parquet, one schema, one file a shard.

Shards are independent, so they fan out over Ray (or threads). Fails with DataError when a source file is damaged.
"""

from pathlib import Path

from tasks.step import step
from training.data.preparation.prepare import Shard, write_raw
from training.plan import RunPlan
from training.records import RawShard


@step("parquet", retries=2, task_run_name="parquet-{shard.index}", persist_result=False)
def parquet(plan: RunPlan, shard: Shard, folder: str) -> RawShard:
    """Write one shard of raw rows, or find it written."""
    return write_raw(plan.files, shard, plan.settings.data, Path(folder))
