"""Values that a recipe's code logs on each rank, reduced to one value for all ranks."""

import hashlib
import math
import re
from collections.abc import Mapping

from training.trainers.ranks import Ranks

_LONGEST_NAME = 220  # characters; MLflow allows 250, with the trainer's prefix


def mean_of_ranks(values: Mapping[str, float], ranks: Ranks) -> dict[str, float]:
    """The mean of each value over all ranks; values that are not finite are left out. All ranks call this function.

    Of a name that only some ranks have, as of a value that code logs on the first rank only, each rank keeps its own.
    """
    names = _common(values, ranks)
    means = dict(values)
    if names:
        sums = ranks.add_up(*(values[name] for name in names))
        means |= {name: total / ranks.world_size for name, total in zip(names, sums, strict=True)}
    return {name: value for name, value in means.items() if math.isfinite(value)}


def _common(values: Mapping[str, float], ranks: Ranks) -> list[str]:
    """The names that all ranks have, in the same order on all ranks."""
    import torch.distributed

    names = sorted(values)
    digest = hashlib.sha256("\n".join(names).encode()).digest()
    if ranks.all_equal(int.from_bytes(digest[:7])):
        return names
    gathered: list[list[str]] = [[] for _ in range(ranks.world_size)]
    torch.distributed.all_gather_object(gathered, names)
    return sorted(set.intersection(*map(set, gathered)))


def metric_name(name: str) -> str:
    """The name of a metric that a user's code logs, as MLflow takes names; a long name is cut and gets a digest."""
    if len(name) > _LONGEST_NAME:
        name = f"{name[:_LONGEST_NAME]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"
    parts = re.sub(r"[^\w./ -]", "_", name).split("/")
    return "/".join(part for part in parts if part.strip(". ")) or "_"
