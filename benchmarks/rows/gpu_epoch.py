"""G2: the guides' ViT on CIFAR-10, one epoch from the call to the finished model, accuracy 0.35 or more.

The guides report about 130 s on one GPU, and under 60 s on eight, with the same images, batch and optimizer. They do
not name the GPU, so the row has no goal; the results name the GPU of this program's seconds. Measured with and without
mixed precision, and with and without deterministic kernels.
"""

import time
from functools import partial
from typing import Any

from benchmarks.baselines.cifar import job_on_gpu, unavailable, version_of
from benchmarks.harness.row import Claim, Outcome, Row, Workspace

_GUIDES_S = 130.0
_FLOOR = 0.35
_SIDES = {
    "mixed": {"precision": "bfloat16", "deterministic": "warn"},
    "mixed-free": {"precision": "bfloat16", "deterministic": "off"},
    "exact": {"precision": "float32", "deterministic": "warn"},
    "exact-free": {"precision": "float32", "deterministic": "off"},
}


def prepare(workspace: Workspace) -> None:
    """Prepare the dataset version."""
    version_of(workspace)


def train(workspace: Workspace, training: dict[str, Any]) -> Outcome:
    """One epoch through `training.supervision.launch`, including imports and startup."""
    from training.supervision.launch import launch

    job = job_on_gpu(workspace, "cifar10-vit", {"epochs": 1} | training)
    began = time.perf_counter()
    trained = launch(job)
    seconds = time.perf_counter() - began
    accuracy = trained.history[-1].validation_score
    if accuracy < _FLOOR and workspace.size != "tiny":
        raise RuntimeError(f"accuracy {accuracy:.3f} is below {_FLOOR}")
    return Outcome({"seconds": seconds, "guides_s": _GUIDES_S}, {"rows": trained.history[-1].rows})


def _claim(side: str) -> Claim:
    return Claim(
        f"G2-{side}",
        f"the guides' ViT, one epoch, {_SIDES[side]['precision']}, "
        f"deterministic {'on' if _SIDES[side]['deterministic'] == 'warn' else 'off'} / the guides' 130 s "
        "on a GPU that they do not name",
        of="seconds",
        of_b="guides_s",
        unit="s",
        goal=None,
        at_least=False,
        a=side,
        b=side,
    )


ROW = Row(
    id="G2",
    sides={side: partial(train, training=training) for side, training in _SIDES.items()},
    claims=tuple(map(_claim, _SIDES)),
    prepare=prepare,
    same=("rows",),
    others=(),
    pairs=3,
    warm_up=False,
    unavailable=unavailable,
)
