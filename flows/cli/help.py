"""Text about all settings for `--help`, generated from the settings schema."""

import textwrap
from typing import Any, get_args

from pydantic import BaseModel

from training.settings.schema import Settings
from training.settings.sections import TrainerSettings

_WIDTH = 100
_NOT_SET = ("trainer",)  # the recipe chooses the trainer


def settings_help() -> str:
    """Every setting with its description and default, section by section."""
    lines = [
        "settings (--set NAME=VALUE; a recipe may have other defaults, `evergreen plan RECIPE` shows them):"
    ]
    lines += _lines(Settings, "")
    return "\n".join(lines)


def _sections(annotation: Any) -> list[type[BaseModel]]:
    """The sections that a field may hold: one, or one for each trainer; none for a single setting."""
    if isinstance(annotation, type):
        return [annotation] if issubclass(annotation, BaseModel) else []
    return [section for one in get_args(annotation) for section in _sections(one)]


def _lines(section: type[BaseModel], prefix: str) -> list[str]:
    lines: list[str] = []
    for name, field in section.model_fields.items():
        sections = _sections(field.annotation)
        if isinstance(field.annotation, type) and sections:
            lines += ["", f"  {name}: {field.description}", *_lines(field.annotation, f"{name}.")]
            continue
        for kind in sections:  # one for each trainer
            assert issubclass(kind, TrainerSettings)
            lines += ["", f"  {name}: {kind.WORDS.section}", *_lines(kind, f"{name}.")]
        if sections or name in _NOT_SET:
            continue
        text = f"{field.description} (default: {'none' if field.default is None else field.default})"
        lines.append(f"  {prefix}{name}")
        lines += textwrap.wrap(text, _WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return lines
