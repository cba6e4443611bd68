"""Text about all settings for `--help`, generated from the settings schema."""

import textwrap
from typing import TYPE_CHECKING, Any, get_args

from pydantic import BaseModel

from training.redaction import redact
from training.settings.schema import Settings
from training.settings.sections import TrainerSettings

if TYPE_CHECKING:
    from training.recipe import Recipe

_WIDTH = 100
_NOT_SET = ("trainer",)  # the recipe chooses the trainer


def settings_help(recipe: "Recipe | None" = None) -> str:
    """Every setting with its description and default, section by section.

    With a recipe: the settings of the recipe's trainer alone, with the recipe's own values as defaults.
    """
    if recipe is None:
        title = "settings (--set NAME=VALUE; `--help` after a RECIPE shows that recipe's settings):"
        return "\n".join([title, *_lines(Settings, "", None)])
    title = f"settings of recipe {recipe.name}, trainer {recipe.settings.trainer} (--set NAME=VALUE):"
    return "\n".join([title, *_lines(Settings, "", recipe.settings)])


def _sections(annotation: Any) -> list[type[BaseModel]]:
    """The sections that a field may hold: one, or one for each trainer; none for a single setting."""
    if isinstance(annotation, type):
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [section for argument in get_args(annotation) for section in _sections(argument)]


def _lines(section: type[BaseModel], prefix: str, values: BaseModel | None) -> list[str]:
    """The lines of a section; defaults are those of `values`, or else those of the section."""
    lines: list[str] = []
    for name, field in section.model_fields.items():
        sections, value = _sections(field.annotation), getattr(values, name, None)
        if isinstance(field.annotation, type) and sections:
            lines += ["", f"  {name}: {field.description}", *_lines(field.annotation, f"{name}.", value)]
            continue
        for kind in sections:  # one for each trainer
            assert issubclass(kind, TrainerSettings)
            if value is None or type(value) is kind:
                lines += ["", f"  {name}: {kind.WORDS.section}", *_lines(kind, f"{name}.", value)]
        if sections or name in _NOT_SET:
            continue
        default = field.default if values is None else value
        shown = "none" if default is None else redact(str(default))
        text = f"{field.description} (default: {shown})"
        lines.append(f"  {prefix}{name}")
        lines += textwrap.wrap(text, _WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return lines
