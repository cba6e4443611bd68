"""Whether torch.export can make a program of a network that is not trained yet, which Evergreen would load again."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.model_formats.program import check_program
from training.errors import DataError, TrainingError
from training.plan import RunPlan
from training.recipe import Recipe
from training.storage.files import digest_json, write_text
from training.storage.paths import Home

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_ROWS = 3  # torch.export treats a batch size of 0 or 1 as a constant, not as dynamic


def check_model(plan: RunPlan, recipe: Callable[[], Recipe], shape: tuple[int, ...], outputs: int) -> None:
    """Build the model for inputs of `shape` and try torch.export on it.

    `shape` and `outputs` are the arguments of `build_model`. A success is cached by these arguments, the recipe and
    the packages' versions. Raises :class:`TrainingError` with torch's reason, and when the model does not fit the
    inputs or outputs.
    """
    vocabulary = getattr(shape, "vocabulary", None)
    about = [plan.recipe.digest, plan.ingredients["versions"], shape, outputs, vocabulary]
    tried = Home(Path(plan.home)).root / "cache" / "exportable" / digest_json(about)
    if tried.is_file():
        return
    import torch

    from training.trainers.network.modules import build_module, model_example

    module = build_module(recipe(), shape, outputs).eval()
    inputs = model_example(shape, _ROWS)
    try:
        program = torch.export.export(module, (inputs,), dynamic_shapes=({0: torch.export.Dim("rows")},))
    except Exception as error:  # torch's tracer raises many types of exceptions
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
