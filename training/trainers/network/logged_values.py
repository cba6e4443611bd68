"""Values that a recipe's code logs on each rank, reduced to one value for all ranks."""

import hashlib
import math
from collections.abc import Mapping

from training.trainers.ranks import Ranks


def mean_of_ranks(values: Mapping[str, float], ranks: Ranks) -> dict[str, float]:
    """The mean of each value over all ranks; values that are not finite are left out. All ranks call this function.

    If the ranks have different names, as when code logs on the first rank only, each rank's own values are returned.
    """
    names = sorted(values)
    digest = hashlib.sha256("\n".join(names).encode()).digest()
    found = dict(values)
    if ranks.all_equal(int.from_bytes(digest[:7])) and names:
        sums = ranks.add_up(*(values[name] for name in names))
        found = {name: total / ranks.world_size for name, total in zip(names, sums, strict=True)}
    return {name: value for name, value in found.items() if math.isfinite(value)}
