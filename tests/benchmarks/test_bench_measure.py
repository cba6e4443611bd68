"""Measurement of a row with real processes as sides: alternation, agreement, and the resulting lines."""

import math
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as program
from benchmarks.__main__ import _chosen
from benchmarks.harness import measure as measuring
from benchmarks.harness import results as store
from benchmarks.harness.measure import Run, Runs, line_of, series, spread_of
from benchmarks.harness.results import Line
from benchmarks.harness.row import (
    Claim,
    DisagreementError,
    Outcome,
    Row,
    Score,
    Workspace,
    check_agreement,
    check_scores,
)
from benchmarks.harness.side import PREPARE, Measured, SideError
from benchmarks.rows import all_rows, find_row

CLAIM = Claim("X", "x", of="s", unit="s", goal=1.0, at_least=False)
_ORPHAN = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True)
"""


def _run(side: str, seconds: float) -> Run:
    return Run(side, Measured(Outcome({"s": seconds}), cpu_s=1.0, peak_mb=2.0))


def test_rows_are_chosen_by_their_ids_and_by_those_of_their_claims() -> None:
    rows = all_rows()
    assert {row.id for row in _chosen(rows, "P1a,P6,p7,P9", "full")} == {"P1a", "P6", "P7", "P8"}
    assert _chosen(rows, "", "full") == rows
    with pytest.raises(SystemExit, match="no such rows: P99; see --list"):
        _chosen(rows, "P9,P99", "full")


def test_an_environment_without_bytecode_is_not_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program.bytecode, "compiled_share", lambda _: 0.4)
    with pytest.raises(SystemExit, match=r"only 40% of the modules have bytecode.*-m training\.bytecode"):
        program.main(["--rows", "U1"])


def test_all_that_one_process_measures_is_one_value() -> None:
    runs = [_run("a", 1.0), _run("b", 5.0), Run("a", Measured(Outcome({"s": [1.0, 4.0]}), 0, 0))]
    assert series(runs, "a", "s", geometric=True) == [1.0, pytest.approx(2.0)]
    assert series(runs, "a", "s", geometric=False) == [1.0, pytest.approx(2.5)]


def test_spread_compares_neighbours_of_one_side_only() -> None:
    runs = [_run("a", 1.0), _run("b", 4.0), _run("b", 2.0), _run("a", 9.0), _run("a", 9.0)]
    assert spread_of(runs, CLAIM) == pytest.approx(math.log(2) / 2)


def test_spread_needs_neighbours() -> None:
    assert spread_of([_run("a", 1.0), _run("b", 4.0)], CLAIM) is None


def test_sides_that_did_other_work_are_found() -> None:
    row = Row("X", {}, (CLAIM,), same=("rows",), close={"loss": 0.1})
    check_agreement(row, {"a": {"rows": 5, "loss": 1.0}, "b": {"rows": 5, "loss": 1.05}})
    with pytest.raises(DisagreementError, match="rows"):
        check_agreement(row, {"a": {"rows": 5, "loss": 1.0}, "b": {"rows": 6, "loss": 1.0}})
    with pytest.raises(DisagreementError, match="loss"):
        check_agreement(row, {"a": {"rows": 5, "loss": 1.0}, "b": {"rows": 5, "loss": 1.2}})
    one_sided: list[dict[str, dict[str, float]]] = [
        {"a": {}, "b": {}},
        {"a": {"rows": 5}, "b": {"rows": 5, "loss": 1.0}},
    ]
    for did in one_sided:
        with pytest.raises(DisagreementError, match="missing"):
            check_agreement(row, did)


def test_an_optional_fact_needs_two_sides() -> None:
    sides = dict.fromkeys("abc", lambda _: Outcome({}))
    row = Row("X", sides, (CLAIM,), same=("rows",), optional=("rows",))
    check_agreement(row, {"a": {"rows": 5}, "b": {"rows": 5}, "c": {}})
    check_agreement(row, {"a": {"rows": 5}, "c": {}})  # the run of b failed
    with pytest.raises(DisagreementError, match="missing"):
        check_agreement(row, {"a": {"rows": 5}, "b": {}, "c": {}})


def test_scores_agree_and_are_above_chance() -> None:
    row = Row("X", {}, (CLAIM,), scores={"accuracy": Score(share=0.2, least=0.3)})
    check_scores(row, {"accuracy": {"a": 0.7, "b": 0.8}})
    with pytest.raises(DisagreementError, match="differs by more than 20%"):
        check_scores(row, {"accuracy": {"a": 0.5, "b": 0.8}})
    with pytest.raises(DisagreementError, match=r"below 0\.3"):
        check_scores(row, {"accuracy": {"a": 0.2, "b": 0.21}})
    with pytest.raises(DisagreementError, match="missing"):
        check_agreement(row, {"a": {"accuracy": 0.7}, "b": {}})


class Machine:
    """Takes the place of processes: the runs of a side last one second, or fail in the rounds that `failing` names."""

    def __init__(self, failing: dict[str, set[int]], accuracy: dict[str, float] | None = None) -> None:
        self.failing = failing
        self.accuracy = accuracy or {}
        self.count: dict[str, int] = {}

    def __call__(self, row: Row, side: str, workspace: Workspace) -> Measured:
        del workspace
        number = self.count[side] = self.count.get(side, -1) + 1
        if number in self.failing.get(side, set()):
            raise SideError(f"{row.id} {side} ended with status 1:\ntrace")
        did = {"accuracy": self.accuracy[side]} if side in self.accuracy else {}
        return Measured(Outcome({"s": 1.0}, did), cpu_s=1.0, peak_mb=2.0)


def _measured(
    failing: dict[str, set[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: Row | None = None
) -> Line:
    monkeypatch.setattr(measuring, "run_side", Machine(failing))
    sides = dict.fromkeys("ab", lambda _: Outcome({}))
    (line,) = measuring.measure(row or Row("X", sides, (CLAIM,), warm_up=False), tmp_path, "full", pairs=4)
    return line


def test_the_pairs_without_a_failed_run_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _measured({}, tmp_path, monkeypatch).met
    line = _measured({"a": {1}}, tmp_path, monkeypatch)
    assert (line.pairs, line.ratio, line.failed_runs, line.met) == (3, 1.0, {"a": 1}, False)
    assert line.note == "failed runs of side a: 1; the first: X a ended with status 1"
    line = _measured({"b": {2}}, tmp_path, monkeypatch)
    assert (line.pairs, line.failed_runs, line.met) == (3, {"b": 1}, True)


def test_a_failed_side_of_evergreen_misses_the_goal_wherever_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides = dict.fromkeys("ab", lambda _: Outcome({}))
    row = Row("X", sides, (CLAIM,), warm_up=False, others=())
    assert _measured({"b": {2}}, tmp_path, monkeypatch, row).met is False


def test_a_side_that_fails_twice_ends_the_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = _measured({"a": {0, 1}}, tmp_path, monkeypatch)
    assert (line.pairs, line.ratio, line.failed_runs, line.met) == (0, None, {"a": 2}, False)


def test_a_failed_warm_up_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sides = dict.fromkeys("ab", lambda _: Outcome({}))
    line = _measured({"a": {0}}, tmp_path, monkeypatch, Row("X", sides, (CLAIM,)))
    assert (line.pairs, line.failed_runs, line.met) == (4, {"a": 1}, False)


@pytest.mark.parametrize(("theirs", "met"), [(0.91, True), (0.5, False)])
def test_sides_whose_models_differ_too_much_keep_their_numbers_and_miss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, theirs: float, met: bool
) -> None:
    monkeypatch.setattr(measuring, "run_side", Machine({}, {"a": 0.9, "b": theirs}))
    sides = dict.fromkeys("ab", lambda _: Outcome({}))
    row = Row("X", sides, (CLAIM,), warm_up=False, scores={"accuracy": Score(share=0.2, least=0.3)})
    (line,) = measuring.measure(row, tmp_path, "full", pairs=4)
    assert (line.ratio, line.pairs, line.met) == (1.0, 4, met)
    assert line.failed_runs == ({} if met else {"agreement": 1})


def test_what_is_counted_is_summed_over_the_runs() -> None:
    claim = Claim("X", "x", of="s", unit="s", goal=None, at_least=False, b="a", counted="kills")
    runs = [
        Run("a", Measured(Outcome({"s": 1.0, "kills": 20}), cpu_s=1.0, peak_mb=2.0), number)
        for number in range(5)
    ]
    assert line_of(Row("X", {}, (claim,)), Runs(runs), claim, "full").note == "100 kills in 5 runs"


def _suite(monkeypatch: pytest.MonkeyPatch, machine: Machine, stamps: list[str]) -> None:
    sides = dict.fromkeys("ab", lambda _: Outcome({}))
    claim = Claim("P1", "x", of="s", unit="s", goal=1.0, at_least=False)
    row = Row("P1", sides, (claim,), warm_up=False, pairs=3)
    monkeypatch.setattr(program, "all_rows", lambda: [row])
    monkeypatch.setattr(program, "adopt_orphans", lambda: None)
    monkeypatch.setattr(measuring, "run_side", machine)
    monkeypatch.setattr(store, "stamp", lambda: stamps.pop(0) if len(stamps) > 1 else stamps[0])


def test_a_row_during_which_the_code_changed_is_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _suite(monkeypatch, Machine({}), ["first", "first", "second"])
    assert program.main(["--out", str(tmp_path), "--work", str(tmp_path)]) == 1
    assert "P1         not recorded: the code changed while the row ran" in capsys.readouterr().err
    assert not (tmp_path / "results.json").exists()


def test_an_unexpected_error_of_a_row_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> Measured:
        raise OSError("no space left")

    _suite(monkeypatch, Machine({}), ["first"])
    monkeypatch.setattr(measuring, "run_side", broken)
    assert program.main(["--out", str(tmp_path), "--work", str(tmp_path)]) == 1
    (line,) = store.read(tmp_path / "results.json").rows
    assert (line.failed_runs, line.note) == ({"row": 1}, "failed: OSError: no space left")
    assert "Traceback" in capsys.readouterr().err


def test_a_row_that_failed_is_measured_again_only_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--out", str(tmp_path), "--work", str(tmp_path)]
    machine = Machine({PREPARE: {0}})
    _suite(monkeypatch, machine, ["first"])
    assert program.main(options) == 1
    assert program.main(options) == 1
    assert "P1         failed before; --rows P1 measures it again" in capsys.readouterr().out
    assert machine.count == {PREPARE: 0}
    assert program.main([*options, "--rows", "P1"]) == 0
    (line,) = store.read(tmp_path / "results.json").rows
    assert (line.met, line.earlier_failures) == (True, 1)
    assert program.main(options) == 0
    assert store.read(tmp_path / "results.json").finished


def test_the_page_is_written_without_measuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine({})
    _suite(monkeypatch, machine, ["first"])
    options = ["--out", str(tmp_path), "--work", str(tmp_path)]
    assert program.main(options) == 0
    before, count = (tmp_path / "results.md").read_text(), dict(machine.count)
    (tmp_path / "results.md").unlink()
    assert program.main([*options, "--page"]) == 0
    assert (tmp_path / "results.md").read_text() == before
    assert machine.count == count


def test_orphans_are_counted_and_ended(tmp_path: Path) -> None:
    script = tmp_path / "measure.py"
    script.write_text(
        f"""
import subprocess, sys
from benchmarks.harness.tree import TreeMeter, adopt_orphans, descendants
adopt_orphans()
with TreeMeter() as meter:
    subprocess.run([sys.executable, "-c", {_ORPHAN!r}], check=True)
    import time
    while sum(process.cpu_s for process in descendants().values()) < 0.8:  # however long a busy machine takes
        time.sleep(0.1)
print(meter.cpu_s, meter.peak_mb, len(descendants()))
"""
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, str(script)],
        env={"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    cpu_s, peak_mb, left = map(float, done.stdout.split())
    assert cpu_s >= 0.7
    assert peak_mb > 1
    assert left == 0


def test_rows_and_claims_have_ids_of_their_own_and_known_sides() -> None:
    rows = all_rows()
    claims = [claim for row in rows for claim in row.claims]
    assert len({row.id for row in rows}) == len(rows)
    assert len({claim.id for claim in claims}) == len(claims)
    for row in rows:
        assert {claim.a for claim in row.claims} | {claim.b for claim in row.claims} <= row.sides.keys()
        assert row.others == ("b",) or set(row.others) <= row.sides.keys()
        assert not set(row.optional) - {*row.same, *row.close}
        assert find_row(row.id) is row


def test_every_row_of_the_table_is_there() -> None:
    wanted = [f"P{number}" for number in range(1, 18)] + ["G1", "G2", "N1", "N2", "N3", "N7", "U1"]
    ids = {claim.id for row in all_rows() for claim in row.claims}
    for row in wanted:
        # P1 matches P1a and P1b, P14 matches P14-rows and so on: a letter or a hyphen follows, never a digit.
        assert any(claim.startswith(row) and not claim[len(row) :][:1].isdigit() for claim in ids), row


def test_the_script_with_fsdp_gathers_the_units_that_evergreen_gathers() -> None:
    from benchmarks.baselines.guides_fsdp import units
    from benchmarks.baselines.guides_training import resnet
    from training.trainers.torch.fsdp import units as chosen

    model = resnet()
    assert list(map(id, chosen(model))) == list(map(id, units(model)))
