"""Check that a table's target column suits the problem, and list the classes of a classification.

A regression needs numbers. A classification needs at least two different values, and few enough of them to be classes;
the values, as text, are the names of the classes.
"""

import pyarrow as pa
import pyarrow.compute as pc

from training.data.sources.wording import counted
from training.data.tables.recognition import has_too_many
from training.data.tables.typed_copy import Notes
from training.data.tables.values import text_of
from training.errors import DataError
from training.problems.objectives import objective_named
from training.records import ProblemName

_NOT_EXACT = 2.0**53  # smallest float64 that is also the value of a neighbouring integer


def check_target(
    distinct: pa.Array, notes: Notes, origin: str, problem: ProblemName, rows: int
) -> tuple[str, ...] | None:
    """Names of the classes, in the order of their numbers 0, 1, ...; None for a problem that predicts numbers.

    `distinct` holds each value of the target once, without missing values; `rows` is the number of rows of the table.
    `notes` names the target and its kind, and `origin` the source in messages. Classes that are numbers are sorted as
    numbers, others as text. Raises :class:`DataError` for a target that the problem can't learn.
    """
    name = notes.target
    if not len(distinct):
        raise DataError(f"{origin}: target {name!r} has no values, so there is nothing to learn.")
    if objective_named(problem).target == "number":
        if notes.label != "number":
            raise DataError(
                f"{origin}: target {name!r} holds {'text' if notes.label == 'category' else 'booleans'}, such as "
                f"{text_of(distinct[0].as_py())!r}, and a {problem} predicts numbers. Use problem=Classification(), "
                "or another target."
            )
        return None
    if notes.label == "number":
        distinct = pc.unique(pc.add(distinct, 0.0))  # 0 and -0 are one class
        largest = max(distinct.to_pylist(), key=abs)
        if abs(largest) >= _NOT_EXACT:
            raise DataError(
                f"{origin}: target {name!r} has the class {text_of(largest)}, and numbers of 2**53 and more are not "
                f'exact. Write these classes as text; for a Table, types={{"{name}": "category"}} reads them as text.'
            )
    if has_too_many(len(distinct), rows):
        kind = "numbers" if notes.label == "number" else "texts"
        remedy = (
            "Use problem=Regression(), or another target." if kind == "numbers" else "Use another target."
        )
        raise DataError(
            f"{origin}: target {name!r} has {len(distinct):,} distinct {kind} in {counted(rows, 'row')}, too many to "
            f"be classes. {remedy}"
        )
    if len(distinct) < 2:
        raise DataError(
            f"{origin}: target {name!r} is {text_of(distinct[0].as_py())!r} in every row; a {problem} needs at "
            "least 2 classes."
        )
    return tuple(map(text_of, sorted(distinct.to_pylist())))
