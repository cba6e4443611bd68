"""Write the table of docs/frameworks.md from what the trainers declare: `python docs/make_frameworks.py`."""

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from tasks.checks.library_check import libraries_of
from training.recipe import BUILT_IN, Recipe, load
from training.recipe_sources import RecipeRef
from training.seams import TRAINERS, extra_of
from training.settings.schema import ScalingSettings, Settings, section_of_trainer
from training.settings.sections import TrainerSettings
from training.trainers.base import trainer_named

PAGE = Path(__file__).with_name("frameworks.md")
_BEGIN, _END = "<!-- begin of the table -->\n", "<!-- end of the table -->"
_UNITS = {"step": "any step", "epoch": "any epoch", "round": "any block of ten rounds"}
_HEAD = (
    "trainer",
    "extra",
    "problems and built-in recipes",
    "resumes at",
    "same bits after a kill",
    "workers",
    "six kills",
)


def table() -> str:
    """The table as Markdown: a row for each trainer, with its default settings, and for each further strategy."""
    recipes = [load(name) for name in BUILT_IN]
    rows = [_HEAD, ("---",) * len(_HEAD)]
    for name in TRAINERS:
        rows.append(_row(name, section_of_trainer(name)(), recipes))
        rows += [_row(name, section, recipes) for section in _strategies(section_of_trainer(name))]
    return "".join("| " + " | ".join(row) + " |\n" for row in rows)


def _strategies(section: type[TrainerSettings]) -> Iterator[TrainerSettings]:
    """The section with each value of its setting `strategy` but the default, if the section has that setting."""
    if (field := section.model_fields.get("strategy")) is not None:
        others = (strategy for strategy in get_args(field.annotation) if strategy != field.default)
        yield from (section.model_validate({"strategy": strategy}) for strategy in others)


def _row(name: str, section: TrainerSettings, recipes: list[tuple[Recipe, RecipeRef]]) -> tuple[str, ...]:
    trainer, strategy = trainer_named(name), getattr(section, "strategy", None)
    is_default = section == section_of_trainer(name)()
    promise = trainer.promise(Settings(training=section))
    extra = extra_of((*trainer.DISTRIBUTIONS, *section.libraries))
    workload = name if is_default else f"{name}-{strategy}"
    environment = "EXTRAS=tensorflow " if name == "tensorflow" else ""
    chaos = f'make chaos {environment}ARGS="--trainer {workload} --faults F6,F23 --trials 1"'
    return (
        f"`{name}`" if is_default else f'`{name}` with `strategy="{strategy}"`',
        f"`{extra}`" if extra else "none",
        _examples(
            [recipe_and_ref for recipe_and_ref in recipes if recipe_and_ref[0].settings.trainer == name],
            extra,
        )
        if is_default
        else f"as `{name}`, with `--set training.strategy={strategy}`",
        _UNITS[promise.resumes],
        _same_bits(name, section),
        "any number, with the same bits" if promise.any_workers else "any number",
        f"`{chaos}`",
    )


def _same_bits(name: str, section: TrainerSettings) -> str:
    """Whether a killed training ends with the same bits, with two workers and with more."""
    two, more = (
        trainer_named(name)
        .promise(Settings(training=section, scaling=ScalingSettings(num_workers=workers)))
        .same_bits_after_kill
        for workers in (2, 4)
    )
    return ("yes" if more else "with up to two workers") if two else "no"


def _examples(recipes: list[tuple[Recipe, RecipeRef]], extra: str) -> str:
    """The names of recipes by their problem, each with the extra that it needs besides the trainer's `extra`."""
    of_problem: dict[str, list[str]] = {}
    for recipe, ref in recipes:
        needed = extra_of(libraries_of(recipe, ref))
        further = f" (extra `{needed}`)" if needed not in ("", extra) else ""
        of_problem.setdefault(recipe.problem.name.replace("_", " "), []).append(f"`{recipe.name}`{further}")
    return "; ".join(f"{problem}: {', '.join(names)}" for problem, names in of_problem.items())


def page(text: str) -> str:
    """The text of the page with a new table. Raises ValueError if the page lacks the two lines around the table."""
    before, begin, rest = text.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not (begin and end):
        raise ValueError(f"{PAGE}: the page needs the lines {_BEGIN.strip()} and {_END}")
    return before + _BEGIN + table() + _END + after


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
