"""Write docs/reference.md from the docstrings and types of the public API: `python docs/make_reference.py`."""

import dataclasses
import inspect
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, Unpack, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

import evergreen

PAGE = Path(__file__).with_name("reference.md")
# All public names, in the order in which a reader needs them.
PARTS = {
    "Recipes": ("Recipe", "Augmentation", "load_recipe"),
    "Sources": (
        "ImageFolder",
        "ParquetImages",
        "Table",
        "Text",
        "BundledTable",
        "Digits",
        "IdxFiles",
        "Cifar10",
    ),
    "Problems": ("Classification", "Regression", "LanguageModel", "Denoising"),
    "Trainers": (
        "Torch",
        "Lightning",
        "Accelerate",
        "TrainingLoop",
        "Transformers",
        "Keras",
        "TensorFlow",
        "XGBoost",
        "LightGBM",
    ),
    "Functions": ("retrain", "plan", "predict", "rollback", "accept", "tune"),
    "Settings": (
        "Settings",
        "DataSettings",
        "TrainingSettings",
        "XGBoostSettings",
        "LightGBMSettings",
        "LightningSettings",
        "AccelerateSettings",
        "TransformersSettings",
        "KerasSettings",
        "TensorFlowSettings",
        "ScalingSettings",
        "CheckpointSettings",
        "FailureSettings",
        "GateSettings",
        "TrackingSettings",
        "StorageSettings",
        "RaySettings",
    ),
    "Results and errors": (
        "Release",
        "Preview",
        "PredictionSummary",
        "SearchResult",
        "Search",
        "Trial",
        "TrialResult",
        "DatasetVersion",
        "open_columns",
        "ImageShape",
        "TextShape",
        "Split",
        "EvergreenError",
    ),
}
# Classes whose objects Evergreen creates and passes to a recipe: the page shows their methods, and no constructor.
PASSED_TO_RECIPES = ("TrainingLoop",)
_INTRODUCTION = """\
# Reference

The public API: what `from evergreen import ...` offers. `make reference` writes this page from the docstrings.
"""
_WIDTH = 100
_ROLE = re.compile(r":(?:class|func|meth|mod|data|attr):`~?([\w.]+)`")
_QUALIFIED = re.compile(r"\b(?:[a-z_]\w*\.)+(?=[A-Za-z])")
_LARGEST = 2**63 - 1  # no reader needs the largest seed
_SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}


def reference() -> str:
    """The page as Markdown. Raises ValueError if :data:`PARTS` does not list each public name once."""
    listed = [name for names in PARTS.values() for name in names]
    if sorted(listed) != sorted(evergreen.__all__):
        raise ValueError(f"PARTS differs from evergreen.__all__: {set(listed) ^ set(evergreen.__all__)}")
    blocks = [_INTRODUCTION]
    for part, names in PARTS.items():
        links = ", ".join(f"[{name}](#{name.lower()})" for name in names)
        blocks += [f"## {part}\n", f"{links}\n", *(block for name in names for block in _entry(name))]
    return "\n".join(blocks)


def _entry(name: str) -> Iterator[str]:
    """Heading, signature, docstring and fields of a public name."""
    value = getattr(evergreen, name)
    yield f"### {name}\n"
    if not callable(value) or not getattr(value, "__module__", "").startswith(("training", "flows")):
        yield f"`{name} = {_text_of(value)}`\n"  # an alias of a type
        return
    is_model = inspect.isclass(value) and issubclass(value, BaseModel)
    if not is_model and name not in PASSED_TO_RECIPES:
        yield f"```python\n{_signature(name, value)}\n```\n"
    yield f"{_prose(inspect.getdoc(value) or '')}\n"
    if is_model:
        yield "| field | type | default | description |\n| --- | --- | --- | --- |"
        yield "\n".join(_row(*field) for field in value.model_fields.items()) + "\n"
    if name in PASSED_TO_RECIPES:
        members = [member for member in vars(value) if not member.startswith("_")]
        yield from (block for member in members for block in _member(member, value))


def _member(name: str, owner: type) -> Iterator[str]:
    """Signature and docstring of a method or property."""
    value = vars(owner)[name]
    if isinstance(value, property):
        yield f"```python\n{name}: {_text_of(inspect.signature(value.fget).return_annotation)}\n```\n"  # type: ignore[arg-type]
    else:
        yield f"```python\n{_signature(name, partial(value, None))}\n```\n"
    yield f"{_prose(inspect.getdoc(value) or '')}\n"


def _signature(name: str, value: Any) -> str:
    """The call, on one line if it fits."""
    if inspect.isclass(value) and issubclass(value, Exception):
        return f"class {name}({value.__base__.__name__})"
    if name in PARTS["Problems"]:
        return f"{name}()"  # other arguments are for problems that are added to Evergreen
    signature = inspect.signature(value)
    made = {
        field.name: f"{field.default_factory.__name__}()"
        for field in (dataclasses.fields(value) if dataclasses.is_dataclass(value) else ())
        if field.default_factory is not dataclasses.MISSING
    }
    parts = [_parameter(parameter, made) for parameter in signature.parameters.values()]
    by_name = [parameter.kind is parameter.KEYWORD_ONLY for parameter in signature.parameters.values()]
    if any(by_name):
        parts.insert(by_name.index(True), "*")
    returned = signature.return_annotation
    end = "" if returned in (None, inspect.Signature.empty) else f" -> {_text_of(returned)}"
    line = f"{name}({', '.join(parts)}){end}"
    return line if len(line) <= _WIDTH else f"{name}(\n    " + ",\n    ".join(parts) + f",\n){end}"


def _parameter(parameter: inspect.Parameter, made: dict[str, str]) -> str:
    """A parameter with type and default; `made` names the functions that create defaults of a dataclass."""
    text = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(
        parameter.kind, ""
    ) + parameter.name
    if parameter.annotation is not parameter.empty and get_origin(parameter.annotation) is not Unpack:
        text += f": {_text_of(parameter.annotation)}"
    return (
        text
        if parameter.default is parameter.empty
        else f"{text} = {made.get(parameter.name, repr(parameter.default))}"
    )


def _row(name: str, field: FieldInfo) -> str:
    """A line of the table of a section of settings or of a record."""
    annotation = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
    limits = [f"{sign} {bound:g}" for sign, bound in _limits(annotation) if bound < _LARGEST]
    cells = (
        f"`{name}`",
        ", ".join([f"`{_text_of(annotation)}`", *limits]),
        _default(field),
        field.description,
    )
    return "| " + " | ".join(str(cell or "").replace("|", r"\|") for cell in cells) + " |"


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return ""
    value = field.get_default(call_default_factory=True, validated_data={})
    return "see its fields" if isinstance(value, BaseModel) else f"`{value!r}`"


def _limits(annotation: Any) -> Iterator[tuple[str, float]]:
    """Bounds of a number, of all members of a union."""
    for part in get_args(annotation) if get_origin(annotation) is not Literal else ():
        for key, sign in _SIGNS.items():
            if (bound := getattr(part, key, None)) is not None:
                yield sign, bound
        yield from _limits(part)
        for inner in part.metadata if isinstance(part, FieldInfo) else ():
            yield from _limits(Annotated[int, inner])


def _text_of(annotation: Any) -> str:
    """A type as in source code, without the names of modules and without bounds."""
    if get_origin(annotation) is Annotated:
        return _text_of(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return " | ".join(map(_text_of, get_args(annotation)))
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return _QUALIFIED.sub("", text).replace("NoneType", "None")


def _prose(docstring: str) -> str:
    """A docstring as Markdown: public names become links, other names lose their modules."""

    def shown(match: re.Match[str]) -> str:
        last = match.group(1).rpartition(".")[2]
        return f"[{last}](#{last.lower()})" if last in evergreen.__all__ else f"`{last}`"

    return _ROLE.sub(shown, docstring)


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
