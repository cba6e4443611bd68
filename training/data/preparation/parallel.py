"""Run a function on all shards of raw rows, as a Ray Data pipeline or in threads of this process."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import pyarrow as pa

from training.data.preparation.raw_rows import ShardInput, raw_batches
from training.errors import classify
from training.machine import available_cpus
from training.records import Record

Plan = TypeVar("Plan", bound=ShardInput)
Outcome = TypeVar("Outcome", bound=Record)


def run_shards(
    plans: Sequence[Plan],
    transform: Callable[[Plan, Iterator[pa.RecordBatch]], Outcome],
    outcome: type[Outcome],
    with_ray: bool,
    heavy: bool = False,
) -> list[Outcome]:
    """The outcomes of `transform` on all plans and the batches of their raw rows, in the order of the plans.

    A single shard runs in this process, unless it is `heavy`: Ray Data's worker would spend 5 CPU seconds on imports.
    Raises the Evergreen error that :func:`training.errors.classify` finds for an error of a Ray task, if any.
    """
    if not with_ray or (len(plans) == 1 and not heavy):
        # Decoding and Parquet release the global interpreter lock; hashing does for values of 2 KiB or more.
        with ThreadPoolExecutor(available_cpus()) as pool:
            return list(
                pool.map(lambda plan: transform(plan, raw_batches(plan.raw, rows=plan.batch_rows)), plans)
            )
    from training.data.preparation.ray_pipeline import map_shards

    try:
        return [outcome.model_validate_json(text) for text in map_shards(plans, transform)]
    except Exception as error:
        if (known := classify(error)) is not None:
            raise known from error
        raise
