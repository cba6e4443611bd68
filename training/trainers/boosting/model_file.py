"""The file of a finished model of boosted trees."""

from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

from training.errors import DataError

if TYPE_CHECKING:
    from training.records import TrainedModel


def checked_content(trained: "TrainedModel") -> bytes:
    """The bytes of a finished training's model. Raises :class:`DataError` if they are not what the training wrote."""
    try:
        content = Path(trained.weights).read_bytes()
    except OSError as error:
        raise DataError(f"{trained.weights}: can't be read ({error})") from error
    if sha256(content).hexdigest() != trained.weights_digest:
        raise DataError(
            f"{trained.weights}: not the file that training wrote (its digest differs). Remove its folder and run the "
            "same command: training finishes again from its newest checkpoint."
        )
    return content
