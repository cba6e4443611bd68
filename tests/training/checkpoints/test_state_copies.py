"""Copies of a state have their own memory, and two buffers are used in turns."""

from collections import Counter
from pathlib import Path

import torch

from training.checkpoints.state_copies import StateCopies
from training.trainers.network.plain_state import plain_state


def test_a_copied_state_shares_no_memory() -> None:
    tensor = torch.zeros(3)
    state = {"a": [tensor, (tensor, 1)], "b": tensor.view(3, 1)}
    copied = StateCopies().take(state)
    tensor += 1
    assert copied["a"][0].sum() == copied["a"][1][0].sum() == copied["b"].sum() == 0
    assert isinstance(copied["a"][1], tuple)


def test_the_newest_copy_stays_while_the_next_is_taken() -> None:
    tensor, copies = torch.zeros(3), StateCopies()
    taken = []
    for turn in range(4):
        taken.append(copies.take({"a": tensor, "more": torch.ones(turn)}))
        tensor += 1
    assert [int(copy["a"][0]) for copy in taken[-2:]] == [2, 3]
    assert taken[-1]["a"].data_ptr() == taken[-3]["a"].data_ptr()  # the older copy's memory is used again
    assert taken[-1]["more"].shape == (3,)


def test_the_milestones_of_a_scheduler_keep_their_type(tmp_path: Path) -> None:
    """MultiStepLR keeps them in a Counter, and uses what other dictionaries lack."""
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 2, 5])
    kept = StateCopies().take(plain_state(scheduler.state_dict(), "state", ""))
    torch.save(kept, tmp_path / "state.pt")
    read = torch.load(tmp_path / "state.pt", weights_only=True)
    assert read["milestones"] == Counter({2: 2, 5: 1})
    assert isinstance(read["milestones"], Counter)
