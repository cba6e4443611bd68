"""Normalisation and augmentation: their effect on pixels, and that each row has its own random draw."""

import numpy as np
import pytest
import torch

from training.data.images.augmentation import Augmentation, augment, normaliser
from training.data.sample_order import AUGMENTATION, stream_key, uniforms

RNG = np.random.default_rng(0)
MEAN, STD = (0.25, 0.5, 0.625), (0.25, 0.125, 0.5)
NORMALISE = normaliser(MEAN, STD)
BLACK = NORMALISE(torch.zeros((1, 3, 1, 1), dtype=torch.uint8))
ROWS = RNG.permutation(10_000)[:40]
IMAGES = torch.from_numpy(RNG.integers(0, 256, (40, 3, 12, 12)).astype(np.uint8))
SPECS = {
    "shift": Augmentation(shift=2),
    "flip": Augmentation(flip=True),
    "shift and flip": Augmentation(shift=2, flip=True),
    "rotation": Augmentation(rotation=20),
    "all": Augmentation(shift=2, rotation=20, scale=0.2, flip=True),
}


def changed(
    spec: Augmentation, images: torch.Tensor = IMAGES, rows: np.ndarray = ROWS, seed: int = 3, epoch: int = 1
):
    return augment(NORMALISE(images), rows, spec, seed, epoch, BLACK)


def test_normalising_is_subtracting_the_mean_and_dividing_by_the_deviation() -> None:
    expected = (IMAGES.double() / 255 - torch.tensor(MEAN).reshape(1, 3, 1, 1)) / torch.tensor(STD).reshape(
        1, 3, 1, 1
    )
    normalised = NORMALISE(IMAGES)
    assert normalised.dtype == torch.float32
    assert torch.allclose(normalised.double(), expected, atol=1e-5)
    assert not NORMALISE.state_dict()


def test_normalised_images_have_zero_mean_and_unit_deviation() -> None:
    pixels = IMAGES.double() / 255
    mean, std = pixels.mean((0, 2, 3)), pixels.std((0, 2, 3), correction=0)
    normalised = normaliser(tuple(mean.tolist()), tuple(std.tolist()))(IMAGES)
    assert torch.allclose(normalised.mean((0, 2, 3)), torch.zeros(3), atol=1e-5)
    assert torch.allclose(normalised.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-5)


def test_no_augmentation_changes_nothing() -> None:
    images = NORMALISE(IMAGES)
    assert augment(images, ROWS, Augmentation(), 3, 1, BLACK) is images


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_a_rows_change_is_its_own(spec: Augmentation) -> None:
    whole = changed(spec)
    for chosen in ([5], [39, 0, 17], list(range(20, 40))[::-1]):
        part = changed(spec, IMAGES[chosen], ROWS[chosen])
        assert torch.equal(part, whole[chosen])


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_seed_epoch_and_row_change_the_draw(spec: Augmentation) -> None:
    first = changed(spec)
    assert torch.equal(changed(spec), first)
    for other in (changed(spec, seed=4), changed(spec, epoch=2), changed(spec, rows=ROWS + 1)):
        same = [torch.equal(image, first_image) for image, first_image in zip(other, first, strict=True)]
        assert sum(same) < 35


def shifted(pixels: np.ndarray, down: int, right: int) -> np.ndarray:
    """Images shifted by whole pixels, with black at the edges that become free."""
    out = np.zeros_like(pixels)
    height, width = pixels.shape[-2:]
    for y in range(height):
        for x in range(width):
            if 0 <= y - down < height and 0 <= x - right < width:
                out[:, y, x] = pixels[:, y - down, x - right]
    return out


def test_a_shift_moves_whole_pixels_every_way_and_black_moves_in() -> None:
    rows = np.arange(120)
    images = torch.from_numpy(RNG.integers(1, 256, (120, 3, 5, 4)).astype(np.uint8))
    augmented = augment(NORMALISE(images), rows, Augmentation(shift=1), 0, 0, BLACK)
    moves = {(down, right): 0 for down in (-1, 0, 1) for right in (-1, 0, 1)}
    for image, result in zip(images.numpy(), augmented, strict=True):
        fitting = [
            move for move in moves
            if torch.allclose(NORMALISE(torch.from_numpy(shifted(image, *move))[None])[0], result, atol=1e-5)
        ]  # fmt: skip
        assert len(fitting) == 1
        moves[fitting[0]] += 1
    # nine shifts, each expected 13 times
    assert min(moves.values()) >= 4
    assert max(moves.values()) <= 26


@pytest.mark.parametrize("limit", [1, 3, 10])
def test_a_shift_reaches_its_limit_and_no_further(limit: int) -> None:
    images = torch.full((500, 3, 4, 4), 255, dtype=torch.uint8)
    result = augment(NORMALISE(images), np.arange(500), Augmentation(shift=limit), 0, 0, BLACK)
    lost = (torch.isclose(result, BLACK, atol=1e-4)).all(1).all(1).sum(1)  # columns that are entirely black
    assert lost.max() == min(limit, 4)
    assert lost.min() == 0


def test_a_flip_mirrors_half_of_the_images() -> None:
    normal, flipped = NORMALISE(IMAGES), changed(SPECS["flip"])
    mirrored = [
        torch.equal(image, original.flip(-1)) for image, original in zip(flipped, normal, strict=True)
    ]
    kept = [torch.equal(image, original) for image, original in zip(flipped, normal, strict=True)]
    assert all(is_mirrored != is_kept for is_mirrored, is_kept in zip(mirrored, kept, strict=True))
    assert 10 <= sum(mirrored) <= 30


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_a_black_image_stays_black(spec: Augmentation) -> None:
    augmented = changed(spec, torch.zeros_like(IMAGES))
    assert torch.allclose(augmented, BLACK.expand_as(augmented), atol=1e-5)


def test_what_comes_from_outside_is_black() -> None:
    white = torch.full_like(IMAGES, 255)
    rotated = changed(Augmentation(rotation=45), white)
    corners = rotated[:, :, [0, 0, -1, -1], [0, -1, 0, -1]]
    assert torch.allclose(rotated[:, :, 5:7, 5:7], NORMALISE(white)[:, :, 5:7, 5:7], atol=1e-4)
    angle = np.abs(uniforms(stream_key(3, 1, AUGMENTATION), ROWS, 5)[:, 0] * 2 - 1) * 45
    turned = torch.from_numpy(angle > 25)
    assert turned.any()
    assert torch.allclose(corners[turned], BLACK[:, :, 0].expand_as(corners[turned]), atol=1e-4)


def test_the_largest_rotation_by_90_degrees_is_a_quarter_turn() -> None:
    key_rows = np.arange(200_000)
    draws = uniforms(stream_key(3, 1, AUGMENTATION), key_rows, 5)[:, 0]
    row = np.array([int(draws.argmax())])  # draw close to 1: rotated by nearly 90 degrees
    image = IMAGES[:1]
    rotated = augment(NORMALISE(image), row, Augmentation(rotation=90), 3, 1, BLACK)
    turns = [torch.rot90(NORMALISE(image), quarter, (2, 3)) for quarter in (1, -1)]
    assert any(torch.allclose(rotated, turn, atol=0.02) for turn in turns)


def test_a_shift_under_rotation_is_in_pixels() -> None:
    draws = uniforms(stream_key(3, 1, AUGMENTATION), np.arange(200_000), 5)
    row = int(np.argmin(np.abs(draws[:, 2] - 1) + np.abs(draws[:, 3] - 0.5)))  # maximal shift in x, none in y
    spot = torch.zeros((1, 3, 12, 12), dtype=torch.uint8)
    spot[:, :, 6, 6] = 255
    augmented = augment(NORMALISE(spot), np.array([row]), Augmentation(shift=3, rotation=1e-6), 3, 1, BLACK)
    bright = (augmented - BLACK)[0, 0]
    assert divmod(int(bright.argmax()), 12) in {(6, 3), (6, 9)}
    assert bright.max() > 0.9 * (NORMALISE(spot) - BLACK)[0, 0].max()
