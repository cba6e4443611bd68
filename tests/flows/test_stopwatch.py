"""Time of a run by part: each second is counted once, from the start of the command to its summary."""

import time

import psutil
import pytest

from flows.cli.summary import _time
from flows.stopwatch import Stopwatch, command_timed, with_whole_command
from training.records import Goodput, Release, TrainedModel


def trained(**parts: float) -> TrainedModel:
    goodput = Goodput(total_s=sum(parts.values()), parts=parts)
    return TrainedModel.model_construct(goodput=goodput)


def release() -> Release:
    return Release.model_construct(seconds=0.0, goodput=Goodput(total_s=0.0, parts={}), reused=False)


def test_the_time_of_a_nested_part_counts_once() -> None:
    clock = Stopwatch()
    began = time.monotonic()
    with clock.time("preflight"), clock.time("training"):
        time.sleep(0.05)
    assert clock.parts["training"] >= 0.05
    assert clock.parts["preflight"] + clock.parts["training"] <= time.monotonic() - began
    timed = clock.timed(release(), trained(compute=0.03, shutdown=0.01), trained_before=False)
    assert timed.goodput.parts["compute"] == 0.03
    assert sum(timed.goodput.parts.values()) == pytest.approx(timed.seconds)


def test_a_training_that_an_earlier_command_finished_counts_with_its_parts() -> None:
    clock = Stopwatch()
    with clock.time("training"):
        pass
    timed = clock.timed(release(), trained(compute=80.0, checkpoint=20.0), trained_before=True)
    assert timed.seconds < 50
    assert timed.goodput.total_s == pytest.approx(timed.seconds + 100)
    assert timed.goodput.useful_share == pytest.approx(0.8, abs=0.1)
    assert "and 100.0 s of training by an earlier command: compute 80.0, checkpoint 20.0" in _time(timed)


def test_a_command_counts_from_the_start_of_its_process_to_its_summary() -> None:
    started = psutil.Process().create_time()
    age = time.time() - started
    with command_timed():
        clock = Stopwatch()
        before = clock.parts["command start"]
        assert age - 2 <= before <= time.time() - started + 2
        timed = clock.timed(release(), trained(compute=0.0), trained_before=False)
        time.sleep(0.05)
        whole = with_whole_command(timed)
    assert whole.goodput.parts["command end"] >= 0.05
    assert whole.seconds == pytest.approx(timed.seconds + whole.goodput.parts["command end"])
    assert whole.goodput.total_s == pytest.approx(sum(whole.goodput.parts.values()))
    assert "command start" not in Stopwatch().parts  # a deployment's flow has no command
