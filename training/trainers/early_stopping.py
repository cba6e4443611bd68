"""Early stopping: the epoch after which a training ends because the validation loss no longer improves.

This epoch is computed from the recorded losses alone, so a training that was killed and resumed ends after the same
epoch as an undisturbed training. An epoch is an improvement if its loss is lower than the losses of all earlier epochs.
"""

import math
from collections.abc import Sequence


def last_epoch(losses: Sequence[float], patience: int | None, epochs: int) -> int:
    """The number of the epoch, counted from 1, after which a training of at most `epochs` epochs ends.

    `losses` are the validation losses of the epochs trained so far. Training ends early as soon as `patience` epochs in
    a row were no improvement; with None, training never ends early.
    """
    best, lowest = 0, math.inf
    for epoch, loss in enumerate(losses, start=1):
        if loss < lowest:
            best, lowest = epoch, loss
        elif patience is not None and epoch - best >= patience:
            return epoch
    return epochs


def early_end(losses: Sequence[float], epoch: str) -> str:
    """Reason why a training with these validation losses ended early; `epoch` is the trainer's word for an epoch."""
    best = losses.index(min(losses)) + 1
    return f"stopped at {epoch} {len(losses)}: the validation loss had not improved since {epoch} {best}"
