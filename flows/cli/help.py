"""Text about all settings for `--help`, generated from the settings schema."""

import textwrap

from pydantic import BaseModel

from training.settings.schema import Settings

_WIDTH = 100


def settings_help() -> str:
    """Every setting with its description and default, section by section."""
    lines = [
        "settings (--set NAME=VALUE; a recipe may have other defaults, `evergreen plan RECIPE` shows them):"
    ]
    lines += _lines(Settings, "")
    return "\n".join(lines)


def _lines(section: type[BaseModel], prefix: str) -> list[str]:
    lines: list[str] = []
    for name, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            lines += ["", f"  {name}: {field.description}", *_lines(kind, f"{name}.")]
            continue
        text = f"{field.description} (default: {'none' if field.default is None else field.default})"
        lines.append(f"  {prefix}{name}")
        lines += textwrap.wrap(text, _WIDTH, initial_indent=" " * 6, subsequent_indent=" " * 6)
    return lines
