"""What people see of a search: log lines, the table, the winner's command, and the picture."""

import logging
from pathlib import Path

import pytest
from PIL import Image

from flows.cli.search_summary import print_search
from tasks.report_page.parallel_coordinates import parallel_coordinates
from training.search.records import Search, SearchResult, Trial, TrialResult

SPACE = {
    "training.learning_rate": "loguniform(1e-4,1e-1)",
    "training.optimizer": "choice(adamw,sgd)",
    "training.epochs": "randint(2,5)",
}


def trial(number: int, rate: float, optimizer: str, epochs: int) -> Trial:
    values = {"training.learning_rate": rate, "training.optimizer": optimizer, "training.epochs": epochs}
    return Trial(number=number, values=values, run_key=str(number) * 64)


def result(number: int, loss: float | None, status: str = "finished", **more: object) -> TrialResult:
    score = None if loss is None else 1 - loss
    fields = {"number": number, "status": status, "validation_loss": loss, "validation_score": score}
    return TrialResult.model_validate(fields | more)


SEARCH = Search(
    recipe="digits",
    key="5" * 64,
    problem="classification",
    metric="accuracy",
    space=SPACE,
    scheduler="asha",
    seed=0,
    trials=(
        trial(1, 0.01, "adamw", 4),
        trial(2, 0.0002, "sgd", 3),
        trial(3, 0.09, "sgd", 2),
        trial(4, 0.05, "adamw", 2),
    ),
    results=(
        result(1, 0.2, epochs=4, best_epoch=3, reused=True),
        result(2, 0.1, "stopped early", epochs=1, best_epoch=1),
        result(3, None, "failed", error="training diverged"),
        result(4, 0.3, epochs=2, best_epoch=2, seconds=3.25),
    ),
)


def test_the_winner_is_a_finished_trial_where_there_is_one() -> None:
    assert SEARCH.winner is not None
    assert SEARCH.winner.number == 1
    stopped = SEARCH.model_copy(update={"results": SEARCH.results[1:3]})
    assert stopped.winner is not None
    assert stopped.winner.number == 2
    assert SEARCH.model_copy(update={"results": SEARCH.results[2:3]}).winner is None


def test_what_is_left_to_do() -> None:
    assert SEARCH.left == []
    again = SEARCH.with_result(result(3, None, "failed", error="died", transient=True))
    assert [pending_trial.number for pending_trial in again.left] == [3]
    assert len(again.results) == 4


def test_the_summary_shows_each_trial_and_the_winner(capsys: pytest.CaptureFixture[str]) -> None:
    command = "evergreen retrain digits --set training.learning_rate=0.01"
    print_search(SearchResult(search=SEARCH, winner=1, command=command, picture="/p.png", seconds=9.0))
    said = capsys.readouterr().out
    lines = {line.split()[0]: line for line in said.splitlines() if line.strip()}
    assert "learning_rate=0.01, optimizer=adamw, epochs=4" in lines["1"]
    assert "reused" in lines["1"]
    assert "stopped early" in lines["2"]
    assert "failed" in lines["3"]
    assert lines["4"].split()[-5:] == ["2", "2", "0.3", "0.7000", "3.2"]
    assert "trial 3: training diverged" in said
    assert "trial 1 has the least validation loss" in said
    assert command in said
    assert "not retrained" in said


def test_the_picture_has_a_line_for_each_scored_trial(tmp_path: Path) -> None:
    logging.getLogger("matplotlib").setLevel(logging.WARNING)
    file = parallel_coordinates(SEARCH, tmp_path / "picture.png")
    with Image.open(file) as picture:
        colours = {colour[:3] for _, colour in picture.convert("RGB").getcolors(1 << 20) or []}
        assert picture.width > picture.height
    assert (0x1B, 0x6B, 0x47) in colours  # the winner's line


def test_a_picture_of_one_trial(tmp_path: Path) -> None:
    alone = SEARCH.model_copy(update={"trials": SEARCH.trials[:1], "results": SEARCH.results[:1]})
    assert parallel_coordinates(alone, tmp_path / "one.png").stat().st_size > 1000
