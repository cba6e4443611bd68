"""The registered model predicts what the trained model does, at several batch sizes and in each column."""

from contextlib import nullcontext

import numpy as np
import numpy.typing as npt
import pytest

from tasks.model_formats.base import check_same
from training.errors import TrainingError

Numbers = npt.NDArray[np.float32]


def of_losses(loss: float, tokens: float) -> Numbers:
    return np.array([[loss, tokens]], np.float32)


@pytest.mark.parametrize(
    ("loss", "tokens", "same"), [(4.0, 1023, True), (4.09, 1023, False), (4.0, 1022, False)]
)
def test_a_loss_is_not_compared_relative_to_a_number_of_tokens(
    loss: float, tokens: float, same: bool
) -> None:
    def trained(inputs: Numbers) -> Numbers:
        return np.repeat(of_losses(4.0, 1023), len(inputs), axis=0)

    def registered(inputs: Numbers) -> Numbers:
        return np.repeat(of_losses(loss, tokens), len(inputs), axis=0)

    inputs = np.zeros((3, 2), np.float32)
    with nullcontext() if same else pytest.raises(TrainingError, match="differs from the trained one"):
        check_same(trained, registered, inputs)


def test_one_test_row_is_repeated_for_the_batch_sizes() -> None:
    sizes = []

    def predict(inputs: Numbers) -> Numbers:
        sizes.append(len(inputs))
        assert (inputs == 7).all()
        return inputs

    check_same(predict, predict, np.full((1, 2), 7, np.float32))
    assert max(sizes) > 1
