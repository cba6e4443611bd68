"""`results.json` between runs: which lines are kept, replaced or measured again; the page and the chart."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness import results as store
from benchmarks.harness.chart import draw
from benchmarks.harness.page import page, summary, verdict
from benchmarks.harness.results import Line, Results
from benchmarks.harness.row import Claim

MET = Line(
    id="P4",
    title="reading",
    ratio=0.8,
    low=0.75,
    high=0.85,
    goal=0.7,
    met=True,
    a=80.0,
    b=100.0,
    unit="MB/s",
    pairs=5,
    spread=0.01,
    cpu_s={"a": 1.0, "b": 2.0},
    peak_mb={"a": 10.0, "b": 20.0},
)
MISSED = MET.model_copy(update={"id": "P5", "met": False, "at_least": False, "goal": 0.05})
VOID = MET.model_copy(update={"id": "P6", "met": None, "note": "void: restless"})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "results.json"


def _measured(file: Path, *lines: Line, finished: bool) -> Results:
    made = store.add(store.begin(file, "full", single_rows=False), list(lines), file)
    made = made.model_copy(update={"finished": finished})
    store.write(made, file)
    return made


def test_an_interrupted_run_goes_on(file: Path) -> None:
    _measured(file, MET, finished=False)
    (line,) = store.begin(file, "full", single_rows=False).rows
    assert line == MET.model_copy(update={"code": line.code, "date": line.date, "machine": line.machine})
    assert len(line.code) == 12
    assert "cores of" in line.machine


def test_after_a_finished_run_all_is_measured_again(file: Path) -> None:
    _measured(file, MET, finished=True)
    assert store.begin(file, "full", single_rows=False).rows == ()


def test_a_file_of_an_older_harness_is_not_gone_on_with(file: Path) -> None:
    made = _measured(file, MET, finished=False)
    file.write_text(made.model_dump_json().replace('"spread"', '"control"'))
    assert store.begin(file, "full", single_rows=False).rows == ()


def test_the_stamp_covers_benchmarks_templates_and_requirements(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for package in ("flows", "benchmarks/rows"):
        (tmp_path / package).mkdir(parents=True)
        (tmp_path / package / "one.py").write_text("first = 1")
    files = ["flows/one.py", "benchmarks/rows/one.py", "flows/page.html.j2", "requirements.lock"]
    for name in files[2:]:
        (tmp_path / name).write_text("first")
    (tmp_path / "pyproject.toml").write_text('[project]\ndependencies = ["ray==1"]')
    monkeypatch.setattr(store, "_ROOT", tmp_path)
    seen = {store.stamp()}
    for name in files:
        (tmp_path / name).write_text("second = 2")
        seen.add(store.stamp())
    (tmp_path / "pyproject.toml").write_text('[project]\ndependencies = ["ray==2"]')
    seen.add(store.stamp())
    assert len(seen) == 2 + len(files)


def test_the_stamp_leaves_out_tools_for_development(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(store, "_ROOT", tmp_path)
    declared = tmp_path / "pyproject.toml"
    declared.write_text(
        '[project]\ndependencies = ["ray"]\n[project.optional-dependencies]\nkeras = ["keras"]'
    )
    before = store.stamp()
    declared.write_text(declared.read_text() + '\ndev = ["mypy"]\n[tool.mypy]\nstrict = true')
    assert store.stamp() == before


def test_named_rows_replace_their_lines_and_leave_the_others(file: Path) -> None:
    _measured(file, MET, MISSED, finished=True)
    better = MISSED.model_copy(update={"ratio": 0.04})
    made = store.add(store.begin(file, "full", single_rows=True), [better], file)
    assert [(line.id, line.ratio) for line in made.rows] == [("P4", MET.ratio), ("P5", 0.04)]
    assert made.finished


def test_a_claim_has_a_line_with_and_one_without_hooks_into_ray(file: Path) -> None:
    off = MET.model_copy(update={"hooks": False, "ratio": 0.9})
    made = _measured(file, off, MET, finished=True)
    assert [(line.id, line.hooks, line.ratio) for line in made.rows] == [
        ("P4", True, 0.8),
        ("P4", False, 0.9),
    ]
    better = off.model_copy(update={"ratio": 0.85})
    made = store.add(store.begin(file, "full", single_rows=True), [better], file)
    assert [(line.hooks, line.ratio) for line in made.rows] == [(True, 0.8), (False, 0.85)]
    text = page(made)
    assert "| P4 | reading | on | 0.8 |" in text
    assert "| P4 | reading | off | 0.85 |" in text
    assert summary(better).startswith("P4 without hooks reading: 0.85")


def test_a_file_from_before_hooks_were_told_apart_is_read(file: Path) -> None:
    made = _measured(file, MET, finished=False)
    file.write_text(made.model_dump_json().replace('"hooks":true,', ""))
    assert [line.hooks for line in store.begin(file, "full", single_rows=False).rows] == [True]


def test_lines_lie_in_the_order_of_their_ids_whatever_was_measured_first(file: Path) -> None:
    ids = ["N1", "P10", "P14-rows", "P14-memory", "P1b", "P2", "G1-vit", "P1a", "S1-2"]
    made = _measured(file, *(MET.model_copy(update={"id": claim_id}) for claim_id in ids), finished=False)
    order = [line.id for line in made.rows]
    assert order == ["P1a", "P1b", "P2", "P10", "P14-rows", "P14-memory", "S1-2", "N1", "G1-vit"]


def test_rows_of_another_size_or_other_packages_are_not_mixed(file: Path) -> None:
    made = _measured(file, MET, finished=False)
    assert store.begin(file, "quick", single_rows=False).rows == ()
    store.write(made.model_copy(update={"versions": made.versions | {"torch": "1.0"}}), file)
    assert store.begin(file, "full", single_rows=True).rows == ()


def test_rows_of_other_code_say_so_until_they_are_measured_again(file: Path) -> None:
    made = _measured(file, MET, MISSED, finished=True)
    older = [line.model_copy(update={"code": "0ther", "date": "2026-01-02"}) for line in made.rows]
    store.write(made.model_copy(update={"code": "0ther", "rows": tuple(older)}), file)
    begun = store.begin(file, "full", single_rows=False)
    assert not begun.finished
    before = f"- Measured with code 0ther on 2026-01-02, {store.described(made.machine)}"
    assert f"{before}: P4, P5" in page(begun)
    assert f"{before}: P5\n" in page(store.add(begun, [MET], file))


def test_a_run_goes_on_on_another_machine_which_the_page_names(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = _measured(file, MET, finished=False)
    monkeypatch.setattr(store, "machine", lambda: made.machine | {"cpu": "another"})
    continued = store.add(store.begin(file, "full", single_rows=False), [MISSED], file)
    assert [line.id for line in continued.rows] == ["P4", "P5"]
    text = page(continued)
    assert f"{made.date}; {made.machine['cores']} cores of another," in text
    assert f"- Measured with code {made.code} on {made.date}, {store.described(made.machine)}: P4\n" in text


def test_the_page_says_a_loss_as_plainly_as_a_win(file: Path) -> None:
    made = _measured(file, MET, MISSED, VOID, finished=True)
    text = page(made)
    assert [verdict(line) for line in made.rows] == ["yes", "**no**", "void"]
    assert all(f"| {line.id} |" in text for line in made.rows)
    assert "- **P6**: void: restless" in text
    missed = text.partition("## Goals that are missed, or not judged")[2].split("\n")
    assert [line for line in missed if line] == [
        "- **P5**, missed: 0.8 (0.75 to 0.85), goal <= 0.05",
        "- **P6**, void: 0.8 (0.75 to 0.85), goal >= 0.7",
    ]


def test_a_row_without_numbers_says_why() -> None:
    line = Line(id="G1", title="on a GPU", goal=0.97, note="not measured: there is no GPU here")
    assert verdict(line) == "not measured"
    assert summary(line).endswith("there is no GPU here")


def _claims(**fields: Any) -> dict[str, Claim]:
    given = {"title": MET.title, "of": "x", "unit": "MB/s", "goal": MET.goal, "at_least": True}
    return {MET.id: Claim(id=MET.id, **(given | fields))}


def test_a_line_with_the_title_of_an_earlier_definition_is_marked(file: Path) -> None:
    made = _measured(file, MET, finished=True)
    (line,) = store.of_claims(made, _claims(title="reading twice")).rows
    assert line == made.rows[0].model_copy(update={"earlier_definition": True})
    text = page(made.model_copy(update={"rows": (line,)}))
    assert "| P4 | (earlier definition) reading | on |" in text
    again = store.of_claims(made.model_copy(update={"rows": (line,)}), _claims())
    assert again.rows == made.rows


def test_a_line_is_judged_by_the_present_goal(file: Path) -> None:
    made = _measured(file, MET, MISSED, finished=True)
    (line,) = store.of_claims(made, _claims(goal=0.9)).rows
    assert (line.id, line.goal, line.met) == ("P4", 0.9, False)
    (line,) = store.of_claims(made, _claims(goal=None)).rows
    assert (line.goal, line.met) == (None, None)


def test_a_failure_with_the_same_code_is_not_forgotten(file: Path) -> None:
    failed = MET.model_copy(update={"failed_runs": {"a": 2}, "met": False, "ratio": None, "note": "failed"})
    made = _measured(file, failed, finished=False)
    assert "- **P4**: missed: failed" in page(made)
    again = store.add(made, [MET], file)
    assert (again.rows[0].ratio, again.rows[0].earlier_failures) == (MET.ratio, 2)
    assert "- **P4**: failed runs of earlier attempts with this code: 2" in page(again)
    other = store.add(again.model_copy(update={"code": "0ther"}), [MET], file)
    assert other.rows[0].earlier_failures == 0


def test_a_row_that_cannot_be_measured_here_replaces_no_numbers(file: Path) -> None:
    made = _measured(file, MET, finished=False)
    without = Line(id="P4", title="reading", note="not measured: not installed")
    assert store.add(made, [without], file).rows == made.rows


def test_the_page_names_several_stamps_few_pairs_and_versions(file: Path) -> None:
    few = MISSED.model_copy(update={"pairs": 3, "versions": {"keras": "3.1"}})
    made = _measured(file, MET, few, finished=False)
    assert "stamps of code" not in page(made)
    other = made.rows[0].model_copy(update={"code": "0ther"})
    text = page(made.model_copy(update={"rows": (other, *made.rows[1:])}))
    assert "they have 2 stamps of code" in text
    assert "Lines with a goal and fewer pairs: P5 (3)." in text
    assert "- **P5**: keras 3.1" in text


def test_versions_are_of_packages_that_are_installed() -> None:
    assert store.versions_of(("numpy", "no_such_package")) == {"numpy": store.versions()["numpy"]}


def test_the_results_of_the_repository_are_read() -> None:
    assert store.read(Path(store.__file__).parents[1] / "results.json").rows


def test_the_chart_is_the_same_for_the_same_numbers(file: Path, tmp_path: Path) -> None:
    made = _measured(file, MET, MISSED, finished=True)
    for name in ("one.svg", "two.svg"):
        draw(made, tmp_path / name)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
    assert b"<svg" in (tmp_path / "one.svg").read_bytes()
