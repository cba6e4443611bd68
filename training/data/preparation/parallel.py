"""Run a function on all shards, as a Ray Data pipeline or in threads of this process."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from training.machine import available_cpus
from training.records import Record

Plan = TypeVar("Plan", bound=Record)
Outcome = TypeVar("Outcome", bound=Record)


def run_shards(
    plans: Sequence[Plan], transform: Callable[[Plan], Outcome], outcome: type[Outcome], with_ray: bool
) -> list[Outcome]:
    """The outcomes of `transform` on all plans, in the order of the plans.

    A single shard runs in this process: Ray Data's worker and two actors would spend 5 CPU seconds on imports.
    """
    if not with_ray or len(plans) == 1:
        # Decoding and Parquet release the global interpreter lock; hashing does for values of 2 KiB or more.
        with ThreadPoolExecutor(available_cpus()) as pool:
            return list(pool.map(transform, plans))
    import ray.data

    rows = [{"number": number, "plan": plan.model_dump_json()} for number, plan in enumerate(plans)]
    one = partial(_transform_row, transform=transform, kind=type(plans[0]))
    dataset = ray.data.from_items(rows, override_num_blocks=len(rows)).map(one)
    found = {row["number"]: outcome.model_validate_json(row["outcome"]) for row in dataset.iter_rows()}
    return [found[number] for number in range(len(plans))]


def _transform_row(
    row: dict[str, Any], transform: Callable[[Any], Record], kind: type[Record]
) -> dict[str, Any]:
    made = transform(kind.model_validate_json(row["plan"]))
    return {"number": row["number"], "outcome": made.model_dump_json()}
