"""Convert the preprocessors of Ray Data that a recipe declares to records.

Ray is not imported here: only a recipe that declares preprocessors imports `ray.data.preprocessors`, and the classes
are recognised by their names.
"""

import math
from collections.abc import Iterator
from typing import Any, get_args

from training.errors import SettingError
from training.table_records import DeclaredStep, PreprocessorName

SUPPORTED: tuple[PreprocessorName, ...] = get_args(PreprocessorName)
_CHAIN = "Chain"
_MODULE = "ray.data.preprocessors."
_FLOATS = ("float32", "float64")


def declared_steps(recipe: str, given: Any) -> tuple[DeclaredStep, ...]:
    """The steps that a recipe declares by `preprocessors=`: one preprocessor, or a list or tuple of preprocessors.

    A Chain is replaced by its parts. Raises :class:`SettingError` for anything but a supported preprocessor, and for
    a preprocessor that is fitted already.
    """
    several = given if isinstance(given, list | tuple) else (given,)
    try:
        return tuple(_step(preprocessor) for each in several for preprocessor in _flatten_chains(each))
    except SettingError as error:
        raise SettingError(f"recipe {recipe}: preprocessors: {error}") from None


def _flatten_chains(given: Any) -> Iterator[Any]:
    if _name_of(given) == _CHAIN:
        for part in given.preprocessors:
            yield from _flatten_chains(part)
    else:
        yield given


def _name_of(given: Any) -> str:
    """The name of a preprocessor's class; empty for anything else."""
    kind = type(given)
    return kind.__name__ if kind.__module__.startswith(_MODULE) else ""


def _step(given: Any) -> DeclaredStep:
    name = _name_of(given)
    if name not in SUPPORTED:
        what = name or f"{given!r}, which is no preprocessor of Ray Data,"
        raise SettingError(
            f"{what} is not supported. Use {', '.join(SUPPORTED)} or {_CHAIN} of ray.data.preprocessors, or change "
            "rows by a function, transform_rows."
        )
    if given.fit_status().value in ("FITTED", "PARTIALLY_FITTED"):
        raise SettingError(
            f"{name} is fitted already. Give it unfitted: Evergreen fits it on the training rows of each run."
        )
    columns = _names(name, given.columns)
    step = DeclaredStep(
        preprocessor=name,
        columns=columns,
        outputs=_outputs(name, given),
        **_options(name, given, columns),
    )
    if name != "Concatenator" and len(set(step.outputs)) < len(step.outputs):
        raise SettingError(f"{name}: two of its output_columns have the same name.")
    return step


def _names(step: str, names: Any) -> tuple[str, ...]:
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise SettingError(f"{step}: columns must be a list of names, such as columns=['a', 'b'].")
    columns = tuple(names)
    if not columns:
        raise SettingError(f"{step}: it names no column.")
    if twice := [name for name in columns if columns.count(name) > 1]:
        raise SettingError(f"{step}: it names column {twice[0]!r} twice.")
    return columns


def _outputs(step: str, given: Any) -> tuple[str, ...]:
    if step == "Concatenator":
        return _names(step, [given.output_column_name])
    return tuple(map(str, given.output_columns))


def _options(step: str, given: Any, columns: tuple[str, ...]) -> dict[str, Any]:
    """The arguments of a preprocessor besides its columns, as fields of :class:`DeclaredStep`."""
    if step == "SimpleImputer":
        return {"strategy": given.strategy} | _fill_value(given)
    if step == "RobustScaler":
        low, high = map(float, given.quantile_range)
        if not 0 <= low < high <= 1:
            raise SettingError(
                f"{step}: quantile_range={given.quantile_range} must be two shares, as (0.25, 0.75)."
            )
        return {"quantile_range": (low, high)}
    if step == "OneHotEncoder":
        return {"max_categories": _max_categories(step, given.max_categories, columns)}
    if step == "Concatenator":
        _check_dtype(given.dtype)
    return {}


def _fill_value(given: Any) -> dict[str, Any]:
    if given.strategy != "constant":
        return {}
    value = given.fill_value.item() if hasattr(given.fill_value, "item") else given.fill_value
    if not isinstance(value, bool | int | float | str) or (isinstance(value, float) and math.isnan(value)):
        raise SettingError(f"SimpleImputer: fill_value={value!r} must be a number, a text or a boolean.")
    return {"fill_value": value}


def _max_categories(step: str, given: Any, columns: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
    most = {str(name): int(number) for name, number in given.items()}
    if unknown := [name for name in most if name not in columns]:
        raise SettingError(f"{step}: max_categories names {unknown[0]!r}, which is not among its columns.")
    if few := [name for name, number in most.items() if number < 1]:
        raise SettingError(f"{step}: max_categories of {few[0]!r} must be at least 1.")
    return tuple(most.items())


def _check_dtype(dtype: Any) -> None:
    import numpy as np

    if dtype is not None and np.dtype(dtype).name not in _FLOATS:
        raise SettingError(f"Concatenator: dtype={dtype} is not supported: a model takes 32-bit floats.")
