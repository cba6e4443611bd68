"""Measure Evergreen against programs that do the same work in other ways: `python -m benchmarks` or `make bench`.

Each finished row prints its lines and updates `results.json`, `results.md` and `results.svg`. An interrupted run
continues when the command is started again; rows named with --rows are always measured.
"""

import argparse
import itertools
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import results as store
from benchmarks.harness.chart import draw
from benchmarks.harness.measure import measure
from benchmarks.harness.page import page, summary
from benchmarks.harness.results import Line, Results
from benchmarks.harness.row import DisagreementError, Row, Size
from benchmarks.harness.side import SideError
from benchmarks.harness.tree import adopt_orphans
from benchmarks.rows import all_rows
from training.ray_cluster import patches

_HOOKS = {"on": (True,), "off": (False,), "both": (True, False)}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the suite. Returns 0 if every row could be run; a missed goal is printed but is no error."""
    options = _arguments(argv)
    rows = all_rows()
    if options.list:
        for row in rows:
            for claim in row.claims:
                print(f"{claim.id:12}{claim.title}")
        return 0
    size: Size = "tiny" if options.tiny else "quick" if options.quick else "full"
    name = "results" if size == "full" else f"results-{size}"
    adopt_orphans()
    work = Path(tempfile.mkdtemp(prefix="evb", dir=options.work))
    try:
        broken = _measure_all(_chosen(rows, options.rows, size), size, options, work, name)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return 1 if broken else 0


def _measure_all(rows: list[Row], size: Size, options: argparse.Namespace, work: Path, name: str) -> int:
    """Measure row after row; returns how many rows failed to run."""
    file = options.out / f"{name}.json"
    results = store.begin(file, size, single_rows=bool(options.rows))
    claimed = {claim.id for row in all_rows() for claim in row.claims}
    kept = tuple(line for line in results.rows if line.id in claimed)  # some claims may have been renamed
    results = results.model_copy(update={"rows": kept})
    measured = {
        (line.id, line.hooks) for line in results.rows if line.ratio is not None and line.code == results.code
    }
    done = set() if options.rows else measured
    broken = 0
    for row, hooks in itertools.product(rows, _HOOKS.get(options.hooks, (patches.active(),))):
        if all((claim.id, hooks) in done for claim in row.claims):
            print(f"{row.id:10} measured before; --rows {row.id} measures it again", flush=True)
            continue
        began = time.monotonic()
        lines, failed = _lines(row, work, size, options.pairs, hooks)
        broken += failed
        results = store.add(results, lines, file)
        _publish(results, options.out, name)
        for line in lines:
            print(summary(line), flush=True)
        print(f"{'':10} {time.monotonic() - began:.0f} s", flush=True)
    if not options.rows:
        results = results.model_copy(update={"finished": True})
        store.write(results, file)
        _publish(results, options.out, name)
    return broken


def _lines(row: Row, work: Path, size: Size, pairs: int | None, hooks: bool) -> tuple[list[Line], bool]:
    """A row's lines, and whether the row failed although it should be measurable here."""
    if reason := row.unavailable(size):
        return _unmeasured(row, hooks, f"not measured: {reason}"), False
    try:
        return measure(row, work, size, pairs, hooks), False
    except (SideError, DisagreementError) as error:
        print(error, file=sys.stderr, flush=True)
        return _unmeasured(row, hooks, f"failed: {str(error).splitlines()[0]}"), True


def _unmeasured(row: Row, hooks: bool, note: str) -> list[Line]:
    return [
        Line(
            id=claim.id,
            title=claim.title,
            hooks=hooks,
            goal=claim.goal,
            at_least=claim.at_least,
            unit=claim.unit,
            note=note,
        )
        for claim in row.claims
    ]


def _publish(results: Results, folder: Path, name: str) -> None:
    (folder / f"{name}.md").write_text(page(results), encoding="utf-8")
    draw(results, folder / f"{name}.svg")


def _chosen(rows: Sequence[Row], names: str, size: Size) -> list[Row]:
    """The rows that `names` lists by their ids or by those of their claims; without names, all rows of this size."""
    wanted = {name.strip().upper() for name in names.split(",") if name.strip()}
    known = {row.id: {name.upper() for name in (row.id, *(claim.id for claim in row.claims))} for row in rows}
    if unknown := wanted.difference(*known.values()):
        raise SystemExit(f"no such rows: {', '.join(sorted(unknown))}; see --list")
    if wanted:
        return [row for row in rows if known[row.id] & wanted]
    return [row for row in rows if size != "quick" or row.quick]


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure all rows, or some.")
    parser.add_argument(
        "--quick", action="store_true", help="measure a five-minute subset, with little work per run"
    )
    parser.add_argument(
        "--tiny",
        action="store_true",
        help="as little work as possible: shows that a row runs, measures nothing",
    )
    parser.add_argument(
        "--rows", default="", help="ids of the rows to measure, such as P1a,P4 (default: all)"
    )
    parser.add_argument(
        "--pairs", type=int, help="pairs per row (default: the row's own number, 5 for most; quick: 2)"
    )
    parser.add_argument(
        "--hooks", choices=list(_HOOKS), help="hooks into Ray (default: as for this version of Ray)"
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).parent, help="folder of the results")
    parser.add_argument("--work", default="/tmp", help="folder for data and homes, with a short path")
    parser.add_argument("--list", action="store_true", help="list the rows")
    return parser.parse_args(argv)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that cleanup runs
    sys.exit(main())
