"""Losses of a denoising model: at fixed noise, by class; and the images that a model generates."""

import copy
import re
from typing import Any

import numpy as np
import pytest
import torch
from test_problem_contract import CLASSES, version_of
from test_problem_contract import TestDenoising as Contract
from torch import nn

from evergreen import Accelerate, Digits, Recipe
from tasks.problems.denoising.outputs import ErrorOutputs
from training.errors import SettingError, TrainingError
from training.problems.denoising import Denoising, score
from training.problems.image_sampling import generated_images
from training.problems.objectives.denoising import LEVELS
from training.records import DatasetVersion
from training.settings.fine_tuning import FineTuningSettings
from training.trainers.network.fine_tuning import start_from

SHAPE = (1, 4, 4)
SCHEDULE = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 1000), 0)  # of Ho et al. 2020
# After Nichol and Dhariwal 2021.
COSINE = torch.cos(torch.linspace(0.008, 1, 1000) / 1.008 * torch.pi / 2) ** 2


class Known(nn.Module):
    """Predicts the noise without error in images of class 1 that are `image`; in those of class 0, predicts nothing."""

    def __init__(self, image: torch.Tensor):
        super().__init__()
        self.image, self.weight = image, nn.Parameter(torch.ones(1))
        self.register_buffer("alphas_cumprod", SCHEDULE)

    def forward(self, noisy: torch.Tensor, steps: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        kept = self.get_buffer("alphas_cumprod")[steps][:, None, None, None]
        noise = (noisy - kept.sqrt() * self.image) / (1 - kept).sqrt()
        return self.weight * noise * (classes == 1)[:, None, None, None]


def built(image: torch.Tensor | None = None) -> nn.Module:
    known = torch.zeros(SHAPE) if image is None else image
    return Denoising().adapted(lambda _, __: Known(known))(SHAPE, 2)


def test_the_error_of_a_row_is_that_of_its_predicted_noise_under_each_class() -> None:
    image = torch.linspace(-1, 1, 16).reshape(SHAPE)
    module = built(image).eval()
    with torch.no_grad():
        errors = module(torch.stack([image, image + 0.5]))
    assert errors.shape == (2, 2)
    assert errors[0, 1] < 1e-5  # the nearest step of the schedule is not exactly at the level
    assert errors[:, 0].tolist() == pytest.approx([1, 1])
    # The noise that explains a wrong image is off by the difference of the images, over the noise's share.
    kept = torch.tensor(LEVELS)
    assert errors[1, 1].item() == pytest.approx((0.25 * kept / (1 - kept)).mean().item(), rel=1e-2)


def test_errors_are_measured_at_the_same_noise_and_trained_at_new_noise() -> None:
    module, images = built(), torch.ones((3, *SHAPE))
    measured = [module.eval()(images) for _ in range(2)]
    assert torch.equal(*measured)
    assert torch.equal(measured[0], built().eval()(images))
    drawn = [module.train()(images) for _ in range(2)]
    assert not torch.equal(*drawn)


def test_models_with_different_noise_schedules_are_measured_on_the_same_noisy_images() -> None:
    given = []
    for schedule in (SCHEDULE, COSINE):
        seen = Seen(schedule)
        Denoising().adapted(lambda _, __, seen=seen: seen)(SHAPE, 2).eval()(torch.ones((3, *SHAPE)))
        given.append(seen.noisy)
        assert schedule[seen.steps[: len(LEVELS)]].tolist() == pytest.approx(LEVELS, abs=1e-2)
    assert torch.equal(*given)


class Seen(nn.Module):
    """Keeps the noisy images and the steps of its last call; predicts no noise."""

    noisy: torch.Tensor
    steps: torch.Tensor

    def __init__(self, schedule: torch.Tensor):
        super().__init__()
        self.register_buffer("alphas_cumprod", schedule)

    def forward(self, noisy: torch.Tensor, steps: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        del classes
        self.noisy, self.steps = noisy, steps
        return torch.zeros_like(noisy)


def test_many_images_are_measured_in_parts() -> None:
    """Each image takes a forward pass for each class and level, so the module gets at most 512 noisy images."""
    seen, images = Seen(SCHEDULE), torch.randn((150, *SHAPE), generator=torch.Generator().manual_seed(0))
    module = Denoising().adapted(lambda _, __: seen)(SHAPE, 2).eval()
    errors = module(images)
    assert errors.shape == (150, 2)
    assert len(seen.noisy) == (150 - 2 * 64) * 2 * len(LEVELS)
    assert Denoising().rows_at_once(2, None) == 64
    assert torch.allclose(errors, torch.cat([module(part) for part in images.split(50)]))


@pytest.mark.parametrize(
    ("schedule", "level"),
    [(SCHEDULE[:100], 0.5), (torch.full((1000,), 1e-4), 0.9), (torch.tensor([float("nan")] * 9), 0.9)],
    ids=["ends at a share of 0.9", "noise alone", "not finite"],
)
def test_a_schedule_without_a_step_near_a_measured_level_is_refused(
    schedule: torch.Tensor, level: float
) -> None:
    with pytest.raises(TrainingError, match=rf"alphas_cumprod is near {level}: .*schedule from nearly 1"):
        Denoising().adapted(lambda _, __: Seen(schedule))(SHAPE, 2)


def test_the_recipe_s_module_keeps_its_weights_names_and_call() -> None:
    module = built()
    assert list(module.state_dict()) == ["weight", "alphas_cumprod", "measured_noise"]
    assert type(module).__name__ == "Known"
    noisy, classes = torch.ones((2, *SHAPE)), torch.tensor([0, 1])
    steps = torch.tensor([10, 10])
    assert module(noisy, steps, classes)[0].abs().sum() == 0
    twin = copy.deepcopy(module).eval()
    with torch.no_grad():
        twin.get_parameter("weight").fill_(0)
    assert twin(torch.zeros((1, *SHAPE)))[0, 1] > 0.5  # its own weights, not those of the original
    assert module.eval()(torch.zeros((1, *SHAPE)))[0, 1] < 1e-5


def test_a_model_starts_from_weights_of_the_recipe_s_own_module_or_for_other_images() -> None:
    own, smaller = Known(torch.zeros(SHAPE)), Denoising().adapted(lambda _, __: Known(torch.zeros(1, 2, 2)))
    for given in (own.state_dict(), smaller((1, 2, 2), 2).state_dict()):
        given["weight"] = torch.full((1,), 3.0)
        module = built()
        noise = module.get_buffer("measured_noise").clone()
        started = start_from(module, given, FineTuningSettings(), 2)
        assert started.new == ()
        assert module.get_parameter("weight").item() == 3
        assert torch.equal(module.get_buffer("measured_noise"), noise)


def test_the_program_that_torch_exports_takes_any_number_of_images() -> None:
    module = built().eval()
    rows = torch.export.Dim("rows")
    program = torch.export.export(module, (torch.zeros((3, *SHAPE)),), dynamic_shapes=({0: rows},))
    images = torch.randn((5, *SHAPE), generator=torch.Generator().manual_seed(0))
    assert torch.allclose(program.module()(images), module(images))


def test_the_build_model_of_a_recipe_with_its_own_loop_gives_losses_too() -> None:
    trainer = Accelerate(print)
    recipe = Recipe("own", source=Digits(), problem=Denoising(), build_model=known, trainer=trainer)
    assert recipe.build_model is not None
    assert recipe.build_model(SHAPE, 2).eval()(torch.zeros((3, *SHAPE))).shape == (3, 2)


def known(shape: Any, classes: int) -> nn.Module:
    del classes
    return Known(torch.zeros(shape))


def test_what_is_refused() -> None:
    with pytest.raises(SettingError, match=re.escape("rows of shape (7,), and needs images (channels")):
        Denoising().adapted(lambda _, __: nn.Identity())((7,), 2)
    with pytest.raises(TrainingError, match="Linear has no noise schedule"):
        Denoising().adapted(lambda _, __: nn.Linear(1, 1))(SHAPE, 2)


def test_a_model_that_knows_its_image_generates_it() -> None:
    version = images_of(mean=(0.5,), std=(0.25,))
    pixels = torch.arange(16).reshape(SHAPE) * 16
    image = (pixels / 255 - 0.5) / 0.25
    generated = generated_images(built(image), version, 3)
    assert (generated.shape, generated.dtype) == ((2, 3, *SHAPE), np.uint8)
    assert np.array_equal(generated[1], np.broadcast_to(pixels.numpy(), (3, *SHAPE)))
    assert not np.array_equal(generated[0, 0], generated[0, 1])  # class 0 stays noise
    assert np.array_equal(generated, generated_images(built(image), version, 3))


def test_images_are_generated_for_some_classes_only() -> None:
    version = images_of(mean=(0.5,), std=(0.25,))
    many = version.model_copy(update={"classes": tuple(map(str, range(60)))})
    assert generated_images(built(torch.zeros(SHAPE)), many, 2).shape == (25, 2, *SHAPE)


def images_of(mean: tuple[float, ...], std: tuple[float, ...]) -> DatasetVersion:
    plain = version_of("denoising", ("class", "subject"), None)
    return plain.model_copy(update={"shape": SHAPE, "mean": mean, "std": std})


@pytest.mark.frameworks  # it needs an extra, so only this mark makes a suite run it
def test_the_sampler_is_that_of_diffusers() -> None:
    """Without a model that reaches the limits of pixels, the steps are those of DDIMScheduler."""
    diffusers: Any = pytest.importorskip("diffusers", reason="install the extras by: make setup EXTRAS=all")
    version = images_of(mean=(0.5,), std=(0.5,))  # pixels are -1 to 1, as of diffusers
    module = Denoising().adapted(lambda _, __: Half())(SHAPE, 2)
    ours = generated_images(module, version, 4)
    scheduler = diffusers.DDIMScheduler(clip_sample=True, set_alpha_to_one=True, timestep_spacing="trailing")
    scheduler.set_timesteps(50)
    images = torch.randn((4, *SHAPE), generator=torch.Generator().manual_seed(1))
    for step in scheduler.timesteps:
        images = scheduler.step(images / 2, step, images, use_clipped_model_output=True).prev_sample
    theirs = ((images.clamp(-1, 1) + 1) / 2 * 255).round().to(torch.uint8).numpy()
    assert np.abs(ours[0].astype(int) - theirs.astype(int)).max() <= 1


class Half(nn.Module):
    """Predicts half of what is given as noise."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("alphas_cumprod", SCHEDULE)

    def forward(self, noisy: torch.Tensor, steps: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        del steps, classes
        return noisy / 2


def test_scores_by_class_and_interval() -> None:
    targets = np.array([0, 0, 1], np.int64)
    errors = np.array([[0.2, 9, 9], [0.4, 9, 9], [9, 0.6, 9]], np.float32)
    noise_score = score(targets, errors, CLASSES, 0.95, 1.0, 1.0)
    assert noise_score.noise_error == pytest.approx(0.4)
    assert noise_score.low < 0.4 < noise_score.high
    assert [
        (class_score.rows, class_score.noise_error and round(class_score.noise_error, 6))
        for class_score in noise_score.classes
    ] == [
        (2, 0.3),
        (1, 0.6),
        (0, None),
    ]


def test_a_champion_with_other_classes_predicts_no_noise_of_those_it_lacks() -> None:
    theirs = np.array([[0.1, 0.2]], np.float32)
    aligned = Denoising().aligned(theirs, ("coral", "amber"), Contract().version())
    assert aligned.tolist() == pytest.approx(np.array([[0.2, 1.0, 0.1]]))


def test_predict_writes_the_class_with_the_lowest_error() -> None:
    outputs, errors = ErrorOutputs(CLASSES), np.array([[0.5, 0.1, 0.3], [0.2, 0.4, 0.9]], np.float32)
    columns = {name: values.to_pylist() for name, values in outputs.columns(errors).items()}
    assert columns["class"] == ["blue", "amber"]
    assert columns["noise_error"] == pytest.approx([0.1, 0.2])
    assert columns["noise_errors"][1] == pytest.approx([0.2, 0.4, 0.9])
    totals = outputs.totals()
    totals.add(errors)
    assert totals.summary() == {"counts": {"amber": 1, "blue": 1, "coral": 0}}


def test_the_description_of_a_model_explains_the_metric() -> None:
    contract = Contract()
    said = Denoising().in_words(contract.scored(contract.perfect() + 0.25), "60 test images")
    assert said == (
        "mean squared error of the predicted noise 0.25 (no interval: the errors of the test images do not vary) "
        "on 60 test images"
    )
    varying = contract.perfect() + np.linspace(0.2, 0.3, len(contract.targets()), dtype=np.float32)[:, None]
    noise_score = contract.scored(varying)
    assert Denoising().in_words(noise_score, "60 test images") == (
        f"mean squared error of the predicted noise 0.25 (95\N{NO-BREAK SPACE}% confidence: {noise_score.low:.4g} to "
        f"{noise_score.high:.4g}, images taken as independent) on 60 test images"
    )
