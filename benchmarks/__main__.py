"""Measure Evergreen against programs that do the same work in other ways: `python -m benchmarks` or `make bench`.

Each finished row prints its lines and updates `results.json`, `results.md` and `results.svg`. An interrupted run
continues when the command is started again. Rows named with --rows are always measured; a row that failed is measured
again in no other way, so that no failure is forgotten.
"""

import argparse
import itertools
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import results as store
from benchmarks.harness.chart import draw
from benchmarks.harness.measure import measure, unmeasured
from benchmarks.harness.page import page, summary
from benchmarks.harness.results import Line, Results
from benchmarks.harness.row import DisagreementError, Row, Size
from benchmarks.harness.side import PREPARE, SideError
from benchmarks.harness.tree import adopt_orphans
from benchmarks.rows import all_rows
from training import bytecode
from training.ray_cluster import patches

_LEAST_COMPILED = 0.9
_HOOKS = {"on": (True,), "off": (False,), "both": (True, False)}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the suite. Returns 0 if every row could be run; a missed goal is printed but is no error."""
    options = _arguments(argv)
    rows = all_rows()
    if options.list:
        claims = [claim for row in rows for claim in row.claims]
        width = max(len(claim.id) for claim in claims)
        for claim in claims:
            print(f"{claim.id:{width}}  {claim.title}")
        return 0
    size: Size = "tiny" if options.tiny else "quick" if options.quick else "full"
    name = "results" if size == "full" else f"results-{size}"
    if options.page:
        file = options.out / f"{name}.json"
        results = _of_present_claims(store.read(file))
        store.write(results, file)
        _publish(results, options.out, name)
        return 0
    if size == "full" and (share := bytecode.compiled_share(bytecode.folders())) < _LEAST_COMPILED:
        raise SystemExit(
            f"only {share:.0%} of the modules have bytecode, so imports would be timed with their compilation: "
            f"{sys.executable} -m training.bytecode"
        )
    adopt_orphans()
    work = Path(tempfile.mkdtemp(prefix="evb", dir=options.work))
    try:
        broken = _measure_all(_chosen(rows, options.rows, size), size, options, work, name)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return 1 if broken else 0


def _measure_all(rows: list[Row], size: Size, options: argparse.Namespace, work: Path, name: str) -> int:
    """Measure row after row; returns how many rows failed to run, or ran while the code changed."""
    file = options.out / f"{name}.json"
    results = _of_present_claims(store.begin(file, size, single_rows=bool(options.rows)))
    broken = 0
    for row, hooks in itertools.product(rows, _HOOKS.get(options.hooks, (patches.active(),))):
        results = results.model_copy(update={"code": store.stamp()})
        if not options.rows and (before := _lines_before(results, row, hooks)):
            failed = any(line.failed_runs for line in before)
            word = "failed" if failed else "measured"
            print(f"{row.id:10} {word} before; --rows {row.id} measures it again", flush=True)
            broken += failed
            continue
        began = time.monotonic()
        lines = _lines(row, work, size, options.pairs, hooks)
        if store.stamp() != results.code:
            message = "not recorded: the code changed while the row ran, so its runs are not of one program"
            print(f"{row.id:10} {message}", file=sys.stderr, flush=True)
            broken += 1
            continue
        broken += any(line.failed_runs for line in lines)
        results = store.add(results, lines, file)
        _publish(results, options.out, name)
        for line in lines:
            print(summary(line), flush=True)
        print(f"{'':10} {time.monotonic() - began:.0f} s", flush=True)
    if not options.rows and not broken:
        results = results.model_copy(update={"finished": True})
        store.write(results, file)
        _publish(results, options.out, name)
    return broken


def _of_present_claims(results: Results) -> Results:
    return store.of_claims(results, {claim.id: claim for row in all_rows() for claim in row.claims})


def _lines_before(results: Results, row: Row, hooks: bool) -> list[Line]:
    """The row's lines, if all its claims have a result of the present code and packages, or a failure."""
    claimed = {claim.id for claim in row.claims}
    versions = store.versions_of(row.packages)
    lines = [
        line
        for line in results.rows
        if line.id in claimed
        and (line.hooks, line.code, line.versions) == (hooks, results.code, versions)
        and (line.ratio is not None or line.failed_runs)
    ]
    return lines if len(lines) == len(claimed) else []


def _lines(row: Row, work: Path, size: Size, pairs: int | None, hooks: bool) -> list[Line]:
    """A line for each of the row's claims, also where the row cannot be measured."""
    if reason := row.unavailable(size):
        return _without_numbers(row, hooks, f"not measured: {reason}", {})
    try:
        return measure(row, work, size, pairs, hooks)
    except (SideError, DisagreementError) as error:
        print(error, file=sys.stderr, flush=True)
        where = PREPARE if isinstance(error, SideError) else "agreement"
        return _without_numbers(row, hooks, f"failed: {str(error).splitlines()[0].rstrip(':')}", {where: 1})
    except Exception as error:  # of the row's own code: the other rows are measured nevertheless
        traceback.print_exc()
        return _without_numbers(row, hooks, f"failed: {type(error).__name__}: {error}", {"row": 1})


def _without_numbers(row: Row, hooks: bool, note: str, failed: dict[str, int]) -> list[Line]:
    here = {"hooks": hooks, "failed_runs": failed}
    return [unmeasured(row, claim, note).model_copy(update=here) for claim in row.claims]


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
    parser.add_argument(
        "--page", action="store_true", help="write page and chart of the results there are; measure nothing"
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that cleanup runs
    sys.exit(main())
