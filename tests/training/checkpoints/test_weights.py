"""Finished weights: saved bit for bit, identified by a digest; damage is reported with the file's name."""

from pathlib import Path

import pytest
import torch

from training.checkpoints.weights import load_weights, save_weights, weights_digest
from training.errors import DataError

WEIGHTS = {"b.weight": torch.randn(3, 4), "a": torch.randn(2).bfloat16(), "count": torch.tensor(7)}


def test_weights_come_back_bit_for_bit(tmp_path: Path) -> None:
    save_weights(WEIGHTS, tmp_path / "weights.safetensors")
    loaded = load_weights(tmp_path / "weights.safetensors")
    assert loaded.keys() == WEIGHTS.keys()
    assert all(
        torch.equal(loaded[name], value) and loaded[name].dtype == value.dtype
        for name, value in WEIGHTS.items()
    )
    assert weights_digest(loaded) == weights_digest(WEIGHTS)


def test_tied_weights_can_be_saved(tmp_path: Path) -> None:
    tensor = torch.randn(4, 4)
    save_weights({"a": tensor, "b": tensor, "view": tensor.T}, tmp_path / "weights.safetensors")
    loaded = load_weights(tmp_path / "weights.safetensors")
    assert torch.equal(loaded["view"], loaded["a"].T)


def test_the_digest_sees_names_shapes_types_and_bits() -> None:
    a = WEIGHTS["b.weight"]
    flipped_bit = a.clone()
    flipped_bit.view(torch.int32)[0, 0] ^= 1
    variants = [
        {"x": a}, {"y": a}, {"x": a.reshape(4, 3)}, {"x": a.view(torch.int32)}, {"x": flipped_bit}, {"x": a, "y": a},
    ]  # fmt: skip
    assert len({weights_digest(variant) for variant in variants}) == len(variants)
    assert weights_digest({"p": a, "q": a}) == weights_digest({"q": a.clone(), "p": a})
    assert weights_digest({"x": a.T.contiguous().T}) == weights_digest({"x": a})


@pytest.mark.parametrize("size", [0, 5, 100])
def test_damaged_weights_are_named(tmp_path: Path, size: int) -> None:
    file = tmp_path / "weights.safetensors"
    save_weights(WEIGHTS, file)
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(DataError, match=str(file)):
        load_weights(file)
    file.unlink()
    with pytest.raises(DataError, match=str(file)):
        load_weights(file)
