"""The transform as a Ray Data pipeline: one read task for each shard of raw rows, fused with the map task after it.

`ray.data.read_parquet` does not keep files apart: it packs several files into one task and cuts a file between two
tasks, by their sizes and the number of CPUs. Part files are cut by row number, so the pipeline reads with a data source
of its own, whose blocks are whole shards. The reader also checks the checksums of pages, which Ray's reader does not.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
import ray.data  # noqa: TID253 - this module is itself imported inside functions
from ray.data import Datasource, ReadTask  # noqa: TID253
from ray.data.block import BlockMetadata  # noqa: TID253

from training import errors
from training.data.preparation.raw_rows import ShardInput, raw_table
from training.errors import EvergreenError
from training.records import Record

# Columns: the number of the shard, and why it can't be read or transformed.
_NUMBER, _ERROR = "shard", "error"
Plan = TypeVar("Plan", bound=ShardInput)
Transform = Callable[[Plan, Iterator[pa.RecordBatch]], Record]


class _RawShards(Datasource):
    """Shards of raw rows, one block each."""

    def __init__(self, plans: Sequence[ShardInput]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._plans = plans

    def estimate_inmemory_data_size(self) -> int | None:
        """Unknown, so that Ray does not derive a number of read tasks from a size."""
        return None

    def get_read_tasks(self, *_: Any, **__: Any) -> list[ReadTask]:
        """One task for each shard, whatever parallelism Ray asks for."""
        return [
            ReadTask(partial(_read, number, plan.raw), _metadata(plan))
            for number, plan in enumerate(self._plans)
        ]


def _metadata(plan: ShardInput) -> BlockMetadata:
    return BlockMetadata(num_rows=None, size_bytes=None, input_files=(plan.raw,), exec_stats=None)


def _read(number: int, raw: str) -> list[pa.Table]:
    try:
        rows = raw_table(raw)
    except EvergreenError as error:
        rows = pa.table({_ERROR: [_text_of(error)]})
    return [rows.append_column(_NUMBER, pa.repeat(pa.scalar(number, pa.int32()), len(rows)))]


def map_shards(plans: Sequence[Plan], transform: Transform[Plan]) -> list[str]:
    """The outcomes of `transform` on all shards as JSON, in the order of `plans`.

    Raises the :class:`EvergreenError` of the first shard that has one.
    """
    dataset = ray.data.read_datasource(_RawShards(plans), override_num_blocks=len(plans))
    dataset.context.target_max_block_size = None  # otherwise Ray cuts blocks above 128 MiB
    mapped = dataset.map_batches(
        partial(_map_shard, plans=plans, transform=transform),
        batch_size=None,
        batch_format="pyarrow",
        zero_copy_batch=True,
    )
    rows = {row["number"]: row for row in mapped.iter_rows()}
    for number in sorted(rows):
        if rows[number][_ERROR]:
            kind, message = json.loads(rows[number][_ERROR])
            raise getattr(errors, kind)(message)
    return [rows[number]["outcome"] for number in range(len(plans))]


def _map_shard(block: pa.Table, plans: Sequence[Plan], transform: Transform[Plan]) -> pa.Table:
    """One row: the shard's number with its outcome, or with an error that people can act on.

    Such an error is returned, not raised: Ray retries a task that raises, and does not keep the error's type.
    """
    number, outcome, failed = block[_NUMBER][0].as_py(), "", ""
    if _ERROR in block.column_names:
        failed = block[_ERROR][0].as_py()
    else:
        plan = plans[number]
        try:
            made = transform(plan, batches_of(block.drop_columns([_NUMBER]), plan.batch_rows))
            outcome = made.model_dump_json()
        except EvergreenError as error:
            failed = _text_of(error)
    return pa.table({"number": [number], "outcome": [outcome], _ERROR: [failed]})


def _text_of(error: EvergreenError) -> str:
    return json.dumps([type(error).__name__, str(error)])


def batches_of(rows: pa.Table, size: int) -> Iterator[pa.RecordBatch]:
    """The rows in batches of `size` rows; the last one may be smaller."""
    for start in range(0, len(rows), size):
        yield rows.slice(start, size).combine_chunks().to_batches()[0]
