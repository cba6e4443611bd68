"""Fit declared preprocessors on the training rows of a table: determine their output columns and their statistics.

Statistics are exact (:mod:`training.data.tables.statistics`), so that they do not depend on how the rows are divided
into blocks. Ray's own `fit` adds numbers block by block, estimates quantiles by a randomised sketch, and breaks ties
by the order of the blocks.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from training.data.preprocessing.features import Feature, Features, Numbers, ReadColumn, Vector, parts_of
from training.data.tables.statistics import moments
from training.errors import SettingError
from training.records import ColumnKind, TableColumn, TableSchema
from training.table_records import DeclaredStep, Equal, Fill, Position, Preprocessing, Scale

_NEARLY_CONSTANT = 1e-8  # as in Ray: a smaller deviation or range counts as 1
_MOST_COLUMNS = 10_000  # limit for the one-hot encoding of one column
_SCALED: frozenset[ColumnKind] = frozenset({"number", "boolean", "date"})
_ENCODED: frozenset[ColumnKind] = frozenset({"number", "boolean", "category"})
_AVERAGED: frozenset[ColumnKind] = frozenset({"number", "date"})
# XGBoost does not allow these characters in names of columns, and categories such as "<18" are frequent.
_IN_NAMES = str.maketrans("[]<", "()\N{SINGLE LEFT-POINTING ANGLE QUOTATION MARK}")


def fitted(steps: Sequence[DeclaredStep], schema: TableSchema, read: ReadColumn) -> TableSchema:
    """Fit `steps` in order; returns the table's schema with the columns that the last step leaves.

    `read` gives the encoded numbers of a column in the training rows, NaN for a missing value. Raises
    :class:`SettingError` for a step that can't be applied to its columns.
    """
    features = _apply_steps(steps, Features(schema, read))
    columns = tuple(features.described(feature) for feature in features)
    preprocessing = Preprocessing(declared=tuple(steps), columns=features.raw(), made=features.made())
    return schema.model_copy(update={"columns": columns, "preprocessing": preprocessing})


def _apply_steps(steps: Sequence[DeclaredStep], features: Features) -> Features:
    for number, step in enumerate(steps, 1):
        try:
            (_concatenate if step.preprocessor == "Concatenator" else _apply_columnwise)(features, step)
        except SettingError as error:
            raise SettingError(f"preprocessors: step {number}, {step.preprocessor}: {error}") from None
    return features


def check_steps(steps: Sequence[DeclaredStep], target: str, columns: Mapping[str, ColumnKind]) -> None:
    """Raise :class:`SettingError` for a step that can't be applied to columns of these kinds; reads no rows."""
    two = np.array([0.0, 1.0])
    schema = TableSchema(
        target=target,
        columns=tuple(
            TableColumn(name=name, kind=kind, categories=("a", "b") if kind == "category" else ())
            for name, kind in columns.items()
        ),
    )
    _apply_steps(steps, Features(schema, lambda _: two, values_known=False))


def _apply_columnwise(features: Features, step: DeclaredStep) -> None:
    made = {
        output: _MAKE[step.preprocessor](features, step, features.single(name), output)
        for name, output in zip(step.columns, step.outputs, strict=True)
    }
    for output in made:
        if output not in step.columns:
            features.check_free(output)
    features.replace((), made)


def _concatenate(features: Features, step: DeclaredStep) -> None:
    """Move the columns to the end, in the order in which the step names them, as Ray does."""
    chosen = [feature for name in step.columns for feature in parts_of(features.named(name))]
    for feature in chosen:
        _check_kind(feature, _SCALED, "Encode it before, by OneHotEncoder or OrdinalEncoder.")
    (output,) = step.outputs
    if output not in step.columns:
        features.check_free(output)
    features.replace(step.columns, {output: Vector(tuple(chosen), step.preprocessor)})


def _check_kind(feature: Feature, allowed: frozenset[ColumnKind], remedy: str) -> None:
    if feature.kind not in allowed:
        raise SettingError(f"column {feature.name!r} is a {feature.kind}. {remedy}")


def _imputed(features: Features, step: DeclaredStep, feature: Feature, output: str) -> Feature:
    if step.strategy == "constant":
        assert step.fill_value is not None
        value = features.number_of(feature, step.fill_value)
    elif step.strategy == "mean":
        _check_kind(feature, _AVERAGED, 'Use strategy="most_frequent" or strategy="constant" for it.')
        value = moments([features.present(feature)]).mean
    else:
        values, counts = np.unique(features.present(feature), return_counts=True)
        value = float(values[np.argmax(counts)])  # the least of equally frequent values
    return feature.after(output, Fill(value=value), feature.kind, feature.is_standardised)


def _scaled(features: Features, step: DeclaredStep, feature: Feature, output: str) -> Feature:
    _check_kind(feature, _SCALED, "Scale numbers only; for text, there are OneHotEncoder and OrdinalEncoder.")
    shift, divisor = _SCALE[step.preprocessor](features.present(feature), step)
    return feature.after(output, Scale(shift=shift, divisor=divisor), "number", is_standardised=True)


def _standard(values: Numbers, step: DeclaredStep) -> tuple[float, float]:
    del step
    value_moments = moments([values])
    return value_moments.mean, value_moments.std if value_moments.std >= _NEARLY_CONSTANT else 1.0


def _range(values: Numbers, step: DeclaredStep) -> tuple[float, float]:
    del step
    least, most = float(values.min()), float(values.max())
    return least, most - least if most - least >= _NEARLY_CONSTANT else 1.0


def _largest(values: Numbers, step: DeclaredStep) -> tuple[float, float]:
    del step
    return 0.0, float(np.abs(values).max()) or 1.0


def _quantiles(values: Numbers, step: DeclaredStep) -> tuple[float, float]:
    """Median, and difference of the two quantiles; each quantile is a value of the column, as in Ray's sketch."""
    assert step.quantile_range is not None
    ordered = np.sort(values)

    def quantile(share: float) -> float:
        return float(ordered[min(len(ordered) - 1, int(share * len(ordered)))])

    low, high = map(quantile, step.quantile_range)
    return quantile(0.5), high - low


def _distinct(features: Features, step: DeclaredStep, feature: Feature) -> list[float]:
    """The values that an encoder encodes, sorted as numbers or as text.

    With `max_categories`, only the most frequent values. Raises :class:`SettingError` when values are missing.
    """
    _check_kind(feature, _ENCODED, "Encode text, booleans or numbers.")
    numbers = features.numbers(feature)
    if missing := int(np.isnan(numbers).sum()):
        raise SettingError(
            f"column {feature.name!r} has {missing:,} missing values in the training rows. Put "
            f'SimpleImputer([{feature.name!r}], strategy="most_frequent") before this step.'
        )
    values, counts = np.unique(features.present(feature), return_counts=True)
    pairs = list(zip(values.tolist(), counts.tolist(), strict=True))
    if feature.kind == "category":
        pairs.sort(key=lambda pair: features.text(feature, pair[0]))
    if most := dict(step.max_categories).get(feature.name):
        # The sort is stable: of equally frequent values, the first ones are kept.
        kept = set(sorted(pairs, key=lambda pair: -pair[1])[:most])
        pairs = [pair for pair in pairs if pair in kept]
    return [value for value, _ in pairs]


def _one_hot(features: Features, step: DeclaredStep, feature: Feature, output: str) -> Vector:
    values = _distinct(features, step, feature)
    if len(values) > _MOST_COLUMNS:
        raise SettingError(
            f"column {feature.name!r} has {len(values):,} different values, and at most {_MOST_COLUMNS:,} can become "
            f"columns. Keep the most frequent ones, as max_categories={{{feature.name!r}: 100}}."
        )
    return Vector(
        tuple(
            feature.after(
                f"{output}_{features.text(feature, value)}".translate(_IN_NAMES),
                Equal(value=value),
                "boolean",
                is_standardised=True,
            )
            for value in values
        ),
        step.preprocessor,
    )


def _ordinal(features: Features, step: DeclaredStep, feature: Feature, output: str) -> Feature:
    return feature.after(output, Position(values=tuple(_distinct(features, step, feature))), "number")


_SCALE: dict[str, Callable[[Numbers, DeclaredStep], tuple[float, float]]] = {
    "StandardScaler": _standard,
    "MinMaxScaler": _range,
    "MaxAbsScaler": _largest,
    "RobustScaler": _quantiles,
}
_MAKE: dict[str, Callable[[Features, DeclaredStep, Feature, str], Feature | Vector]] = {
    **dict.fromkeys(_SCALE, _scaled),
    "SimpleImputer": _imputed,
    "OneHotEncoder": _one_hot,
    "OrdinalEncoder": _ordinal,
}
