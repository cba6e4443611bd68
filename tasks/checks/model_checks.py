"""Checks before training that a model fits its images, the champion and MLflow's format; they don't need Prefect."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.model_formats.program import check_program
from training.errors import DataError, SettingError, TrainingError
from training.plan import RunPlan
from training.recipe import Recipe
from training.records import ImageShape
from training.storage.files import digest_json, write_text
from training.storage.paths import Home

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_ROWS = 3  # torch.export treats a batch size of 0 or 1 as a constant, not as dynamic


def compare_shapes(model: str, number: str, theirs: ImageShape, ours: ImageShape) -> None:
    """Raises :class:`SettingError` when the champion takes images of another shape (channels, height, width)."""
    if theirs != ours:
        raise SettingError(
            f"tracking.model: champion {model} version {number} takes images of {theirs} (channels, height, "
            f"width), the data are {ours}, so the two can't be compared. Set data.image_size and "
            "data.channels to match, or register under another name with tracking.model."
        )


def check_model(plan: RunPlan, recipe: Callable[[], Recipe], shape: ImageShape, classes: int) -> None:
    """Build the model for images of `shape` (channels, height, width) and try torch.export on it.

    A success is cached by recipe, package versions, image shape and number of classes. Raises :class:`TrainingError`
    with torch's reason, and when the model does not fit the images or classes.
    """
    about = [plan.recipe.digest, plan.ingredients["versions"], shape, classes]
    tried = Home(Path(plan.home)).root / "cache" / "exportable" / digest_json(about)
    if tried.is_file():
        return
    import torch

    from training.trainers.torch.replica import build_module

    module = build_module(recipe(), shape, classes).eval()
    images = torch.zeros((_ROWS, *shape))
    try:
        program = torch.export.export(module, (images,), dynamic_shapes=({0: torch.export.Dim("rows")},))
    except Exception as error:  # torch's tracer raises many kinds
        raise TrainingError(
            f"recipe {plan.recipe.name}: its model can't be exported by torch.export ({error}), so it could not be "
            "registered. Keep data-dependent control flow out of its forward pass."
        ) from error
    _check_loadable(plan.recipe.name, program)
    write_text(tried, plan.recipe.name)


def _check_loadable(recipe: str, program: "ExportedProgram") -> None:
    """Raises :class:`TrainingError` when the model could be registered but would be refused when it is loaded."""
    import torch

    content = io.BytesIO()
    torch.export.save(program, content)
    content.seek(0)
    try:
        check_program(content)
    except DataError as error:
        raise TrainingError(
            f"recipe {recipe}: its exported model would not be loaded again ({error}). Models may use PyTorch's own "
            "tensor operations, and none that read files, resize memory or come from another library."
        ) from error
