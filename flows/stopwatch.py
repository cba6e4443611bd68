"""Where the wall time of a flow run goes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from training.records import Goodput, TrainedModel


@dataclass
class Stopwatch:
    """Seconds by step of a flow, from the moment it was made."""

    began: float = field(default_factory=time.perf_counter)
    parts: dict[str, float] = field(default_factory=dict)

    @property
    def elapsed_s(self) -> float:
        """Seconds since it was made."""
        return time.perf_counter() - self.began

    @contextmanager
    def time(self, part: str) -> Iterator[None]:
        """Add the block's seconds to `part`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.parts[part] = self.parts.get(part, 0.0) + time.perf_counter() - start

    def goodput(self, trained: TrainedModel) -> Goodput:
        """The whole so far, training taken apart into its own parts, the rest called orchestration."""
        total = self.elapsed_s
        parts: dict[str, float] = {}
        for name, seconds in self.parts.items():
            if name != "training":
                parts[name] = parts.get(name, 0.0) + seconds
                continue
            inner = trained.goodput.parts if trained.goodput.total_s <= seconds else {}
            for inner_name, inner_seconds in inner.items():
                parts[inner_name] = parts.get(inner_name, 0.0) + inner_seconds
        parts["orchestration"] = max(0.0, total - sum(parts.values()))
        return Goodput(total_s=total, parts=parts)
