"""In: source files. Out: raw rows as typed Parquet with one schema, one file per shard.

Shards are independent, so they run in parallel on Ray (or threads). Fails with DataError when a source file is
damaged.
"""

from pathlib import Path

from tasks.step import step
from training.data.preparation.prepare import Shard, write_raw
from training.plan import RunPlan
from training.records import RawShard


@step("parquet", retries=2, task_run_name="parquet-{shard.index}", persist_result=False)
def parquet(plan: RunPlan, shard: Shard, folder: str) -> RawShard:
    """Write one shard of raw rows, or reuse its file when it is complete already."""
    return write_raw(plan.files, shard, plan.settings.data, Path(folder))
