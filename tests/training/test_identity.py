"""The run key changes if and only if an ingredient that influences the weights changes."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from named_parts import WITH_FOLDER
from small_runs import tiny_settings, write_recipe

from training import identity, libraries
from training.data.sources.digits import Digits
from training.identity import changes, code_of, ingredients, latest_run, run_key
from training.plan import identify
from training.recipe import load
from training.settings.overrides import describe, parse_assignments, resolve
from training.settings.schema import Settings, section_of_trainer
from training.storage.paths import Home
from training.trainers.base import trainer_named

_, REF = load("digits")
BASE = tiny_settings(scaling={"num_workers": 1}, training={"init_from": "champion"})  # allows training.freeze
DATA = "d" * 64
CODE = {"training.data.dataset": "c" * 64, "training.trainers.torch.loop": "1" * 64}
# By section: another valid value of every setting that influences the weights.
WEIGHTS = {
    "seed": 1,
    "data.feed": "loader",
    "data.validation_share": 0.2,
    "training.epochs": 3,
    "training.max_steps": 5,
    "training.global_batch_size": 128,
    "training.accumulation_steps": 2,
    "training.optimizer": "sgd",
    "training.learning_rate": 0.5,
    "training.weight_decay": 0.5,
    "training.momentum": 0.5,
    "training.schedule": "constant",
    "training.warmup_share": 0.5,
    "training.label_smoothing": 0.5,
    "training.class_weights": "balanced",
    "training.clip_norm": 0.5,
    "training.precision": "bfloat16",
    "training.augment": False,
    "training.threshold": "f1",
    "training.select": "last",
    "training.deterministic": "off",
    "training.compile": True,
    "training.init_head": "new",
    "training.freeze": ["conv1"],
    "training.virtual_shards": 2,
    "training.strategy": "fsdp",
    "training.zero_stage": 3,
    "training.channels_last": True,
    "scaling.num_workers": 2,
    "scaling.threads_per_worker": 2,
}
# Already contained in the dataset's fingerprint.
DATASET = {
    "data.image_size": 16,
    "data.channels": 3,
    "data.max_train_rows": 100,
    "data.max_test_rows": 100,
    "data.test_share": 0.3,
    "data.max_dropped_share": 0.1,
    "data.duplicates": "drop",
}
# Refused for images; tests/training/data/text/test_text_versions.py has their part in the identity of texts.
OF_TEXT = {"data.max_tokens", "data.vocabulary"}
OTHERS = {
    "tracking.model_format": "torch_export",
    "training.init_from": "version:7",  # the digest of the weights counts, see test_init_from.py
    "data.validation_split": "ignore",  # counts only for sources with a validation split
    "gate.error_control": "strict",
    "gate.horizon": 100,
    "data.path": "/data",
    "data.changes": "tell",
    "data.change_limits": ["scale=100"],
    "data.ignore_changes": ["weight"],
    "data.loader_processes": 2,
    "data.loader_prefetch": 3,
    "scaling.min_workers": 1,
    "scaling.cpus_per_worker": 0.5,
    "scaling.use_gpu": "auto",
    "scaling.gpus_per_worker": 0.5,
    "scaling.accelerator_type": "A100",
    "scaling.placement_strategy": "SPREAD",
    "scaling.backend": "gloo",
    "scaling.network_interface": "eth0",
    "checkpoint.every_s": 1.0,
    "checkpoint.every_steps": 1,
    "checkpoint.keep_newest": 3,
    "checkpoint.keep_best": 2,
    "checkpoint.replay": False,
    "gate.floor": 0.5,
    "gate.metric": "f1",
    "gate.positive": "1",
    "gate.quantile": 0.9,
    "gate.costs": [["1", "0", 5.0]],
    "gate.baseline": False,
    "gate.policy": "not_worse",
    "gate.margin": 0.1,
    "gate.confidence": 0.9,
    "gate.max_class_drop": 0.1,
    "failure.max_failures": 1,
    "failure.worker_start_timeout_s": 1.0,
    "tracking.outage_s": 1.0,
    "failure.hang_timeout_s": 1.0,
    "failure.stop_timeout_s": 1.0,
    "failure.collective_timeout_s": 1.0,
    "tracking.uri": "http://127.0.0.1:5000",
    "tracking.experiment": "other",
    "tracking.model": "other",
    "tracking.log_every_steps": 1,
    "tracking.system_metrics": True,
    "tracking.also": ["tensorboard"],
    "storage.url": "s3://bucket/folder",
    "storage.node_cache": "/scratch",
    "ray.address": "127.0.0.1:6379",
    "ray.num_cpus": 1,
    "ray.dashboard": True,
    "ray.object_store_mb": 100,
}
# By trainer besides the PyTorch loop: another valid value of every setting of its section.
TRAINERS = {
    "xgboost": {
        "class_weights": "balanced",
        "rounds": 7,
        "learning_rate": 0.5,
        "max_depth": 2,
        "min_child_weight": 2.0,
        "gamma": 0.5,
        "subsample": 0.5,
        "colsample_bytree": 0.5,
        "reg_lambda": 0.5,
        "reg_alpha": 0.5,
        "max_bin": 16,
        "select": "last",
        "early_stopping_rounds": 3,
        "threshold": "f1",
    },
    "lightgbm": {
        "class_weights": "balanced",
        "rounds": 7,
        "learning_rate": 0.5,
        "num_leaves": 4,
        "max_depth": 2,
        "min_data_in_leaf": 2,
        "min_gain_to_split": 0.5,
        "bagging_fraction": 0.5,
        "feature_fraction": 0.5,
        "lambda_l1": 0.5,
        "lambda_l2": 0.5,
        "max_bin": 16,
        "select": "last",
        "early_stopping_rounds": 3,
        "threshold": "f1",
    },
    "accelerate": {
        "balance_classes": True,
        "epochs": 3,
        "max_steps": 5,
        "global_batch_size": 64,
        "augment": False,
        "threshold": "f1",
        "select": "last",
        "deterministic": "off",
    },
    "transformers": {
        "epochs": 3,
        "max_steps": 5,
        "global_batch_size": 64,
        "learning_rate": 0.5,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 0.5,
        "optim": "sgd",
        "weight_decay": 0.5,
        "adam_beta1": 0.5,
        "adam_beta2": 0.5,
        "adam_epsilon": 0.5,
        "max_grad_norm": 0.5,
        "gradient_accumulation_steps": 2,
        "label_smoothing_factor": 0.5,
        "precision": "bfloat16",
        "init_head": "new",
        "freeze": ["encoder"],
        "augment": False,
        "threshold": "f1",
        "select": "last",
        "deterministic": "off",
    },
    "keras": {
        "epochs": 3,
        "max_steps": 5,
        "global_batch_size": 64,
        "accumulation_steps": 2,
        "optimizer": "sgd",
        "learning_rate": 0.5,
        "weight_decay": 0.5,
        "momentum": 0.5,
        "schedule": "step",
        "warmup_share": 0.5,
        "label_smoothing": 0.5,
        "class_weights": "balanced",
        "clip_norm": 0.5,
        "precision": "bfloat16",
        "augment": False,
        "threshold": "f1",
        "select": "last",
        "deterministic": "off",
    },
    "tensorflow": {
        "epochs": 3,
        "max_steps": 5,
        "global_batch_size": 64,
        "optimizer": "sgd",
        "learning_rate": 0.5,
        "weight_decay": 0.5,
        "momentum": 0.5,
        "schedule": "step",
        "warmup_share": 0.5,
        "augment": False,
        "threshold": "f1",
        "select": "last",
        "deterministic": "off",
    },
    "lightning": {
        "epochs": 3,
        "max_steps": 5,
        "global_batch_size": 64,
        "clip_norm": 0.5,
        "precision": "bfloat16",
        "augment": False,
        "threshold": "f1",
        "select": "last",
        "deterministic": "off",
    },
}


def changed(name: str, value: object) -> Settings:
    settings = resolve(BASE, parse_assignments([f"{name}={json.dumps(value)}"]))
    assert describe(settings)[name] != describe(BASE)[name]
    return settings


def parts_of(settings: Settings = BASE, **others: Any) -> identity.Ingredients:
    code = others.get("code", CODE)
    return ingredients(others.get("ref", REF), settings, others.get("data", DATA), code, others.get("nonce"))


def test_every_setting_is_sorted_into_one_of_three() -> None:
    assert (WEIGHTS | DATASET | OTHERS).keys() | OF_TEXT == describe(BASE).keys()


@pytest.mark.parametrize("name", WEIGHTS)
def test_a_setting_that_changes_the_weights_changes_the_key(name: str) -> None:
    before, after = parts_of(), parts_of(changed(name, WEIGHTS[name]))
    assert run_key(before) != run_key(after)
    old, new = describe(BASE)[name], WEIGHTS[name]
    said = [f"settings.{name}: {old} -> {new}"]
    if name == "training.virtual_shards":  # with virtual shards, the number of workers no longer counts
        said.insert(0, f"settings.scaling.num_workers: {BASE.scaling.num_workers} -> any")
    assert changes(before, after) == said


def test_every_trainer_is_listed() -> None:
    assert {"torch", *TRAINERS} == WITH_FOLDER


@pytest.mark.parametrize("trainer", sorted(WITH_FOLDER))
def test_an_upgrade_of_each_library_of_a_trainer_changes_the_key(
    trainer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed: dict[str, str] = {}
    monkeypatch.setattr(
        identity,
        "library_versions",
        lambda _recipe, more=(): {name: installed.get(name, "1") for name in more},
    )
    settings = BASE.model_copy(update={"training": section_of_trainer(trainer)()})
    before = run_key(parts_of(settings))
    libraries = trainer_named(trainer).DISTRIBUTIONS
    assert libraries
    for name in libraries:
        installed[name] = "2"
        assert run_key(parts_of(settings)) != before
        del installed[name]


@pytest.mark.parametrize("trainer", TRAINERS)
def test_every_setting_of_a_trainer_changes_the_key(trainer: str) -> None:
    section = section_of_trainer(trainer)
    assert TRAINERS[trainer].keys() == section.model_fields.keys() - {"trainer", *section.NOT_IN_KEY}
    sections = [
        section(),
        *(section.model_validate({name: value}) for name, value in TRAINERS[trainer].items()),
    ]
    keys = {run_key(parts_of(BASE.model_copy(update={"training": training}))) for training in sections}
    assert len(keys) == len(sections)


@pytest.mark.parametrize("name", OTHERS)
def test_other_settings_do_not(name: str, tmp_path: Path) -> None:
    settings = changed(name, OTHERS[name])
    files = Digits().fetch(tmp_path)
    plans = [identify(Home(tmp_path), REF, variant, files, None) for variant in (BASE, settings)]
    assert plans[0].run_key == plans[1].run_key
    assert plans[0].fingerprint == plans[1].fingerprint


@pytest.mark.parametrize("name", DATASET)
def test_settings_of_the_dataset_count_by_its_fingerprint(name: str, tmp_path: Path) -> None:
    files = Digits().fetch(tmp_path)
    plans = [
        identify(Home(tmp_path), REF, variant, files, None)
        for variant in (BASE, changed(name, DATASET[name]))
    ]
    assert plans[0].run_key != plans[1].run_key
    (said,) = changes(plans[0].ingredients, plans[1].ingredients)
    assert said == f"data: {plans[0].fingerprint[:12]}… -> {plans[1].fingerprint[:12]}…"


def test_the_same_ingredients_make_the_same_key() -> None:
    assert run_key(parts_of()) == run_key(json.loads(json.dumps(parts_of())))
    assert changes(parts_of(), parts_of()) == []
    assert len(run_key(parts_of())) == 64


def test_data_recipe_code_and_versions_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = parts_of()
    assert changes(before, parts_of(data="e" * 64)) == [f"data: {'d' * 12}… -> {'e' * 12}…"]
    other = load(write_recipe(tmp_path))[1].model_copy(update={"name": "digits"})
    assert [change.partition(":")[0] for change in changes(before, parts_of(ref=other))] == ["recipe.source"]
    renamed = REF.model_copy(update={"name": "other"})
    assert changes(before, parts_of(ref=renamed)) == ["recipe.name: digits -> other"]
    monkeypatch.setattr(libraries, "version", lambda _: "9.9+cpu")
    assert [change.partition(":")[0] for change in changes(before, parts_of())] == [
        "versions.numpy",
        "versions.torch",
        "versions.torchvision",
    ]
    assert parts_of()["versions"]["torch"] == "9.9"


def test_a_forced_run_has_a_key_of_its_own() -> None:
    keys = {run_key(parts_of(nonce=nonce)) for nonce in (None, "a", "b")}
    assert len(keys) == 3
    assert run_key(parts_of(nonce="a")) in keys
    assert changes(parts_of(), parts_of(nonce="a")) == ["forced: None -> a"]


def test_moving_the_recipe_does_not_count(tmp_path: Path) -> None:
    first = write_recipe(tmp_path / "a")
    (tmp_path / "b").mkdir()
    second = shutil.copy(first, tmp_path / "b" / "plain.py")
    keys = {run_key(parts_of(ref=load(str(path))[1])) for path in (first, second)}
    assert len(keys) == 1


def test_moving_the_home_does_not_count(tmp_path: Path) -> None:
    homes = [Home(tmp_path / name) for name in ("one", "another")]
    plans = [identify(home, REF, BASE, Digits().fetch(home.sources)) for home in homes]
    assert plans[0].run_key == plans[1].run_key
    assert plans[0].paths.root != plans[1].paths.root


def test_a_file_beside_the_recipe_counts(tmp_path: Path) -> None:
    path = write_recipe(tmp_path, model="__import__('beside').build(shape, classes)")
    Path(path).write_text("import beside\n" + Path(path).read_text())
    (tmp_path / "beside.py").write_text("def build(shape, classes): ...\n")
    before = parts_of(ref=load(path)[1])
    (tmp_path / "beside.py").write_text("def build(shape, classes): return None\n")
    after = parts_of(ref=load(path)[1])
    assert run_key(before) != run_key(after)
    assert [change.partition(":")[0] for change in changes(before, after)] == ["recipe.source"]


def test_a_comment_in_a_recipe_does_not_count(tmp_path: Path) -> None:
    path = Path(write_recipe(tmp_path))
    before = parts_of(ref=load(str(path))[1])
    path.write_text('"""Another docstring."""\n# a comment\n' + path.read_text().replace(", ", ",   "))
    assert run_key(parts_of(ref=load(str(path))[1])) == run_key(before)


def test_the_module_that_changed_is_named(tmp_path: Path) -> None:
    before = parts_of()
    other = CODE | {"training.trainers.torch.loop": "2" * 64}
    assert changes(before, parts_of(code=other)) == [
        f"code.training.trainers.torch.loop: {'1' * 12}… -> {'2' * 12}…"
    ]
    fewer = {"training.data.dataset": CODE["training.data.dataset"]}
    assert changes(before, parts_of(code=fewer)) == [
        f"code.training.trainers.torch.loop: {'1' * 12}… -> not used"
    ]
    older = before | {"code": "0" * 64}
    assert changes(older, before) == ["code: another version of Evergreen recorded it in another form"]


def test_the_reader_of_the_source_counts_and_other_readers_do_not(tmp_path: Path) -> None:
    code = code_of(Digits().fetch(tmp_path))
    readers = {name for name in code if name.startswith("training.data.sources.")}
    assert "training.data.sources.digits" in readers
    assert not readers & {f"training.data.sources.{name}" for name in ("idx", "cifar", "folder", "parquet")}


def test_the_newest_run_tells_what_changed(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert latest_run(home, "digits") is None
    for age, seed in ((10, 1), (5, 3), (20, 2)):
        file = home.run("digits", f"{seed}" * 64).ingredients
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({"ingredients": parts_of(changed("seed", seed))}))
        os.utime(file, (1e9 - age, 1e9 - age))
    plan = identify(home, REF, BASE, Digits().fetch(tmp_path), None)
    assert not plan.first
    assert "settings.seed: 3 -> 0" in plan.changes
    assert identify(home, load(write_recipe(tmp_path))[1], BASE, Digits().fetch(tmp_path), None).first
