"""The column of a table without a key that could be one: distinct integers or texts, none of them missing."""

import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from training.data.tables.keys import as_key
from training.data.tables.reading import blocks
from training.data.tables.typed_copy import read_notes
from training.records import SourceFiles

_NAMED = re.compile(r"(?i)(^|[_\W])(id|ids|key|uuid|guid|number|nr|no|code)$|[a-z]I[Dd]$|^(id|key|uuid|guid)")
_FRACTION = r"^[+-]?\d*\.\d+([eE][+-]?\d+)?$"
_FEWEST_ROWS = 20  # among fewer rows, many columns have distinct values
_MOST_BYTES = 256 << 20  # of source files that are read for a proposal: `plan` is to stay fast


def proposed_key(files: SourceFiles, dropped: Sequence[str]) -> str | None:
    """Name of the column that fits best as `Table(key=...)`; None if no column fits, and for very large files.

    Looked at are the columns `dropped` from the features, and features whose name is that of a key, such as `id`: a
    feature of another name may be a measure whose values happen to be distinct. A name of a key comes first.
    """
    notes = read_notes(Path(files.root))
    if files.bytes > _MOST_BYTES or sum(notes.rows.values()) < _FEWEST_ROWS:
        return None
    candidates = [*dropped, *(name for name in notes.columns if _NAMED.search(name))]
    values: dict[str, list[pa.Array]] = {name: [] for name in sorted(candidates, key=_rank)}
    for file in map(Path, notes.files):
        for block in blocks(file, list(values)) if values else ():
            for name in list(values):
                column = block.rows[name]
                texts = None if _is_measure(column) else as_key(column)
                if texts is None or texts.null_count or pc.any(_fractions(texts)).as_py():
                    del values[name]
                else:
                    values[name].append(texts)
    return next((name for name, texts in values.items() if _are_distinct(texts)), None)


def _rank(name: str) -> bool:
    return not _NAMED.search(name)


def _is_measure(column: pa.Array) -> bool:
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    return not (pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _fractions(texts: pa.Array) -> pa.Array:
    return pc.match_substring_regex(texts, _FRACTION)


def _are_distinct(texts: Sequence[pa.Array]) -> bool:
    column = pa.chunked_array(texts, pa.string())
    return len(column) > 0 and pc.count_distinct(column).as_py() == len(column)
