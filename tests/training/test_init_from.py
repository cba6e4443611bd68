"""What `training.init_from` may be, and how the weights that it names enter a run's plan and run key."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from small_runs import tiny_settings

from tasks.registry.initial_weights import find_start
from tasks.train import keep_plan
from training.checkpoints.weights import digest_of_file, weights_digest
from training.data.sources.digits import Digits
from training.errors import DataError, SettingError
from training.identity import changes, inputs_digest
from training.initial_weights import InitialWeights, Start, weights_file
from training.plan import RunPlan, identify
from training.recipe import load
from training.search.planning import at_version
from training.settings.overrides import parse_assignments, resolve
from training.settings.schema import Settings
from training.storage.files import write_text
from training.storage.paths import Home

ONE, OTHER = "1" * 64, "2" * 64
RECIPE = """
from pathlib import Path
from evergreen import Digits, Recipe, Settings, TrainingSettings

settings = Settings(training=TrainingSettings(init_from={}))
recipe = Recipe("plain", "for a test", Digits(), build_model=print, settings=settings)
"""


def of_version(number: str, digest: str, reference: str = "champion") -> InitialWeights:
    return InitialWeights(reference=reference, model="digits", version=number, digest=digest)


def champion(number: str, digest: str, **made: Any) -> Start:
    return Start("champion", "digits", of_version(number, digest), **made)


def planned(home: Home, start: Start | None, seed: int = 0, force: bool = False) -> RunPlan:
    settings = tiny_settings(seed=seed, training={"init_from": "champion"})
    return identify(home, load("digits")[1], settings, Digits().fetch(home.sources), force, start)


def assigned(*assignments: str) -> Settings:
    return resolve(tiny_settings(), parse_assignments(assignments))


# --- the settings


@pytest.mark.parametrize("text", ["champion", "version:12", "weights.safetensors", "/a/b c.safetensors"])
def test_a_champion_a_version_or_a_file_is_named(text: str) -> None:
    assert assigned(f"training.init_from={text}").training.initial_weights == text
    assert assigned(f"training.init_from={text}", "training.init_from=none").training.initial_weights is None


@pytest.mark.parametrize(
    "text", ["7", "version:0", "version:x", "version 7", "Champion", "weights", "", "true"]
)
def test_anything_else_is_refused_with_the_three_ways(text: str) -> None:
    with pytest.raises(
        SettingError, match=r"training\.init_from: .* champion, as version:N .* \.safetensors"
    ):
        assigned(f"training.init_from={text}")


@pytest.mark.parametrize("ending", ["pt", "pth", "bin", "ckpt", "pkl"])
def test_a_pickle_is_refused_with_the_command_that_converts_it(ending: str, tmp_path: Path) -> None:
    file = tmp_path / f"given.{ending}"
    torch.save({"layer.weight": torch.ones(2, 3).T}, file)
    with pytest.raises(SettingError, match="unpickling") as refused:
        assigned(f"training.init_from={file}")
    command = str(refused.value).split("`")[1]
    program = command.removeprefix('python -c "').removesuffix('"')
    exec(program, {})  # the command as a user runs it, without the time of another Python process
    converted = tmp_path / "given.safetensors"
    assert str(refused.value).endswith(f"give {converted}, got {str(file)!r}")
    assert digest_of_file(converted) == weights_digest({"layer.weight": torch.ones(3, 2)})


def test_boosted_trees_do_not_have_the_setting() -> None:
    with pytest.raises(SettingError, match=r"training\.init_from: no such setting"):
        resolve(load("breast-cancer")[0].settings, {"training": {"init_from": "champion"}})


def test_a_file_in_a_recipe_is_relative_to_the_recipe(tmp_path: Path) -> None:
    path = tmp_path / "plain.py"
    for value, expected in (
        ("'first.safetensors'", str(tmp_path / "first.safetensors")),
        ("Path('/data/first.safetensors')", "/data/first.safetensors"),
        ("'champion'", "champion"),
    ):
        path.write_text(RECIPE.format(value))
        assert load(str(path))[0].settings.training.initial_weights == expected


def test_parts_to_freeze_are_a_list_or_comma_separated_in_any_order() -> None:
    start = "training.init_from=champion"
    training = assigned(start, "training.freeze=layer1, conv1,conv1").training
    assert training == assigned(start, 'training.freeze=["conv1", "layer1"]').training
    assert assigned(start, "training.freeze=none").training == assigned(start).training
    assert assigned(start, "training.freeze=0") == assigned(start, "training.freeze=[0]")
    with pytest.raises(
        SettingError, match=r'training\.freeze: .* write a list, as training\.freeze=\["1\.10"\]'
    ):
        assigned(start, "training.freeze=1.10")
    with pytest.raises(
        SettingError, match=r"training\.freeze: new weights are not frozen; set training\.init_from"
    ):
        assigned("training.freeze=conv1")


# --- the run key


def test_the_digest_of_the_weights_counts_and_their_name_does_not(home: Home) -> None:
    plain, first, other = (planned(home, start) for start in (None, champion("3", ONE), champion("3", OTHER)))
    assert len({plain.run_key, first.run_key, other.run_key}) == 3
    file = InitialWeights(reference="/weights.safetensors", digest=ONE)
    for weights in (of_version("4", ONE, "version:4"), file):
        start = Start(weights.reference, weights.model, weights)
        assert planned(home, start).run_key == first.run_key
    assert changes(plain.ingredients, first.ingredients) == ["initial_weights: new -> 111111111111…"]
    assert RunPlan.model_validate_json(first.model_dump_json()) == first


def test_without_a_champion_the_run_is_that_without_the_setting(home: Home) -> None:
    first = planned(home, Start("champion", "digits"))
    assert (first.initial, first.run_key) == (None, planned(home, None).run_key)
    assert first.started_from == "new weights: there was no champion"


def test_missing_weights_are_refused(home: Home) -> None:
    with pytest.raises(SettingError, match="no version 3"):
        planned(home, Start("version:3", "digits", missing="no version 3"))


def test_a_champion_that_was_made_from_the_same_inputs_repeats_its_run(home: Home) -> None:
    """Otherwise each scheduled run would promote a model from which the next run would start, with unchanged data."""
    first = planned(home, Start("champion", "digits"))
    second = planned(home, champion("1", ONE), seed=2)
    third = planned(home, champion("2", OTHER), seed=2, force=True)
    for made in (first, second, third):
        seed = made.settings.seed
        inputs, forced = inputs_digest(made.ingredients), made.ingredients.get("forced")
        promoted = champion("9", "9" * 64, inputs=inputs, before=made.initial, forced=forced)
        again = planned(home, promoted, seed)
        assert (again.run_key, again.initial) == (made.run_key, made.initial)
        changed = planned(home, promoted, seed + 1)
        assert changed.initial == promoted.weights
        on_purpose = planned(home, promoted, seed, force=True)
        assert on_purpose.initial == promoted.weights


def test_an_unfinished_run_goes_on_from_the_champion_of_its_time(home: Home) -> None:
    begun = keep_plan(planned(home, champion("1", ONE)))
    later = champion("2", OTHER)
    assert planned(home, later).initial == later.weights  # its weights were not copied: they may be gone
    write_text(begun.paths.initial_weights, "")
    assert planned(home, later).run_key == begun.run_key
    assert planned(home, later, seed=1).initial == later.weights
    elsewhere = Start("champion", "another model", later.weights)
    assert planned(home, elsewhere).initial == later.weights
    assert planned(home, later, force=True).initial == later.weights
    write_text(begun.paths.release, "{}")
    assert planned(home, later).initial == later.weights


def test_an_unfinished_forced_run_goes_on_from_the_champion_of_its_time(home: Home) -> None:
    begun = keep_plan(planned(home, champion("1", ONE), force=True))
    later = champion("2", OTHER)
    assert planned(home, champion("1", ONE), force=True).run_key == begun.run_key
    assert planned(home, later, force=True).initial == later.weights  # its weights were not copied
    write_text(begun.paths.initial_weights, "")
    resumed = planned(home, later, force=True)
    assert (resumed.run_key, resumed.initial) == (begun.run_key, begun.initial)
    assert planned(home, later).initial == later.weights
    assert planned(home, later, seed=1, force=True).initial == later.weights
    numbered = Start("version:2", "digits", of_version("2", OTHER, "version:2"))
    assert planned(home, numbered, force=True).initial == numbered.weights
    assert planned(home, None, force=True).initial is None
    write_text(begun.paths.release, "{}")
    assert planned(home, later, force=True).initial == later.weights


def test_a_forced_run_goes_on_though_its_version_was_deleted(home: Home) -> None:
    begun = keep_plan(
        planned(home, Start("version:3", "digits", of_version("3", ONE, "version:3")), force=True)
    )
    gone = Start("version:3", "digits", missing="no version 3")
    with pytest.raises(SettingError, match="no version 3"):
        planned(home, gone, force=True)
    write_text(begun.paths.initial_weights, "")
    assert planned(home, gone, force=True).run_key == begun.run_key


def test_a_trial_of_a_search_is_no_unfinished_run(home: Home) -> None:
    trial = keep_plan(planned(home, champion("1", ONE)).model_copy(update={"search": "5" * 64}))
    write_text(trial.paths.initial_weights, "")
    later = champion("2", OTHER)
    assert planned(home, later).initial == later.weights
    assert planned(home, later).first  # a trial is not the recipe's last run


def test_a_search_from_the_champion_starts_all_trials_from_one_version(home: Home) -> None:
    start = champion("2", OTHER, inputs="1" * 64, before=of_version("1", ONE))
    overrides, fixed = at_version({"training": {"epochs": 3}, "seed": 1}, start)
    assert overrides == {"training": {"epochs": 3, "init_from": "version:2"}, "seed": 1}
    assert fixed == Start("version:2", "digits", of_version("2", OTHER, "version:2"))
    for other in (None, Start("champion", "digits"), fixed, Start("version:3", missing="no version 3")):
        assert at_version({}, other) == ({}, other)


def test_a_run_goes_on_though_its_version_was_deleted(home: Home) -> None:
    start = Start("version:3", "digits", of_version("3", ONE, "version:3"))
    begun = keep_plan(planned(home, start))
    gone = Start("version:3", "digits", missing="no version 3")
    with pytest.raises(SettingError, match="no version 3"):
        planned(home, gone)
    write_text(begun.paths.initial_weights, "")
    assert planned(home, gone).run_key == begun.run_key
    write_text(begun.paths.release, "{}")  # also finds what is finished
    assert planned(home, gone).run_key == begun.run_key
    with pytest.raises(SettingError, match="no version 3"):
        planned(home, gone, seed=1)


def test_a_plan_of_an_earlier_version_has_no_initial_weights(home: Home) -> None:
    content = json.loads(planned(home, None).model_dump_json())
    del content["initial"]
    for name in ("init_from", "init_head", "freeze"):
        del content["settings"]["training"][name]
    older = RunPlan.model_validate(content)
    assert (older.initial, older.started_from) == (None, "")


# --- the digest of a file


def test_a_file_has_the_digest_of_its_tensors(tmp_path: Path) -> None:
    kinds = [
        torch.float64,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.uint8,
        torch.bool,
        torch.complex64,
    ]
    weights = {str(kind): torch.arange(6).reshape(2, 3).to(kind) for kind in kinds}
    weights |= {"a number": torch.tensor(3), "nothing": torch.empty(0, 4), "large": torch.rand(700, 700)}
    save_file(weights, tmp_path / "one.safetensors", metadata={"format": "pt"})
    assert digest_of_file(tmp_path / "one.safetensors") == weights_digest(weights)


@pytest.mark.parametrize("content", [b"", b"12345678", b"\x10" + bytes(7) + b"{}", b"\x80\x02pickle" * 9])
def test_another_file_is_refused(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "one.safetensors"
    file.write_bytes(content)
    with pytest.raises(DataError, match="no readable safetensors file"):
        digest_of_file(file)


# --- folders


def test_a_folder_is_named_by_a_path(tmp_path: Path) -> None:
    path = tmp_path / "plain.py"
    for value, expected in (("Path('bert')", tmp_path / "bert"), ("'./bert'", tmp_path / "bert")):
        path.write_text(RECIPE.format(value))
        weights = load(str(path))[0].settings.training.initial_weights
        assert weights is not None
        assert Path(weights) == expected
    assert assigned("training.init_from=/data/bert").training.initial_weights == "/data/bert"


def test_the_weights_of_a_folder_are_in_one_safetensors_file(tmp_path: Path) -> None:
    weights = {"layer.weight": torch.ones(2, 3)}
    cases = [
        (("pytorch_model.bin",), r"pytorch_model\.bin is read by unpickling.*Convert a state_dict once by"),
        (("model.safetensors.index.json", "pytorch_model.bin"), "the weights are in several files"),
        (("config.json",), r"the folder has no model\.safetensors"),
    ]
    for number, (names, message) in enumerate(cases):
        folder = tmp_path / str(number)
        folder.mkdir()
        for name in names:
            (folder / name).write_text("{}")
        with pytest.raises(SettingError, match=rf"training\.init_from: .*{message}"):
            weights_file(folder)
    with pytest.raises(
        SettingError, match=r"none: no folder with model\.safetensors; weights on .* hub:OWNER/NAME"
    ):
        weights_file(tmp_path / "none")
    save_file(weights, tmp_path / "0" / "model.safetensors")
    assert digest_of_file(weights_file(tmp_path / "0")) == weights_digest(weights)


def test_a_folder_is_planned_with_the_digest_of_its_file(home: Home, tmp_path: Path) -> None:
    weights = {"layer.weight": torch.ones(2, 3)}
    save_file(weights, tmp_path / "model.safetensors")
    start = find_start(home, "digits", assigned(f"training.init_from={tmp_path}"))
    assert start == Start(
        str(tmp_path), weights=InitialWeights(reference=str(tmp_path), digest=weights_digest(weights))
    )
    (tmp_path / "model.safetensors").unlink()
    gone = find_start(home, "digits", assigned(f"training.init_from={tmp_path}"))
    assert gone is not None
    assert (gone.reference, gone.weights) == (str(tmp_path), None)
    assert "has no model.safetensors" in gone.missing
