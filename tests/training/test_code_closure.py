"""Which modules enter a run key, and which parts of their source."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from small_runs import tiny_settings

from training import code_closure
from training.code_closure import COMPUTING, code_digests, source_digest
from training.data.dataset import transform_modules
from training.identity import code_of
from training.plan import choose_source
from training.recipe import BUILT_IN, load
from training.records import SourceFiles
from training.storage.paths import Home

ROOMS = Path(code_closure.__file__).parent
COMMON = {
    "data.columns",
    "data.dataset",
    "data.images",
    "data.images.decoding",
    "data.manifest",
    "data.preparation",
    "data.preparation.bad_rows",
    "data.preparation.duplicates",
    "data.preparation.parallel",
    "data.preparation.prepare",
    "data.preparation.raw_rows",
    "data.preparation.ray_pipeline",
    "data.preparation.row_function",
    "data.preparation.shards",
    "data.sample_order",
    "data.sources",
    "data.sources.rows",
    "data.sources.splits",
    "data.sources.wording",
    "problems.objectives",
    "problems.thresholds",
    "trainers.accounting",
    "trainers.base",
    "trainers.finished_model",
    "trainers.generators",
    "trainers.long_work",
    "trainers.ranks",
    "trainers.replay_outcome",
    "trainers.row_weights",
    "trainers.requests",
    "trainers.rows",
}
NETWORK = {
    "data.images.augmentation",
    "trainers.entry",
    "trainers.exchange",
    "trainers.network",
    "trainers.network.accumulators",
    "trainers.network.building",
    "trainers.network.feeds",
    "trainers.network.inputs",
    "trainers.network.modules",
    "trainers.network.own_settings",
    "trainers.network.checksums",
    "trainers.network.learner",
    "trainers.network.progress",
    "trainers.network.replay",
    "trainers.network.replay_check",
    "trainers.network.validation",
}
OWN_LOOP = NETWORK | {
    "trainers.own_loop",
    "trainers.own_loop.loop",
    "trainers.own_loop.own_settings",
    "trainers.own_loop.replay",
    "trainers.own_loop.replica",
    "trainers.own_loop.schedule",
    "trainers.own_loop.unsaved_state",
    "trainers.own_loop.worker",
}
TORCH = OWN_LOOP | {
    "trainers.network.dataset_checks",
    "trainers.torch",
    "trainers.network.fine_tuning",
    "trainers.network.dataset_rows",
    "trainers.network.loader_feed",
    "trainers.torch.collective",
    "trainers.torch.deepspeed_engine",
    "trainers.torch.fsdp",
    "trainers.torch.ordered_sum",
    "trainers.torch.own_settings",
    "trainers.torch.replica",
    "trainers.torch.trainer",
    "trainers.torch.virtual_shards",
    "trainers.torch.worker",
    "trainers.torch.zero",
}
KERAS = OWN_LOOP | {
    "trainers.network.dataset_checks",
    "trainers.keras",
    "trainers.keras.library",
    "trainers.keras.module",
    "trainers.keras.trainer",
    "trainers.keras.worker",
    "trainers.network.keras_import",
    "trainers.network.steps",
}
TENSORFLOW = (NETWORK - {f"trainers.network.{name}" for name in ("modules", "replay")}) | {
    "trainers.own_loop",
    "trainers.own_loop.schedule",
    "trainers.tensorflow",
    "trainers.tensorflow.learner",
    "trainers.tensorflow.library",
    "trainers.tensorflow.model",
    "trainers.tensorflow.objectives",
    "trainers.tensorflow.own_settings",
    "trainers.tensorflow.strategy",
    "trainers.tensorflow.trainer",
    "trainers.tensorflow.worker",
    "trainers.network.keras_import",
    "trainers.network.steps",
}
LIGHTNING = NETWORK | {
    "trainers.network.later_replay",
    "trainers.lightning",
    "trainers.lightning.batches",
    "trainers.lightning.datamodule",
    "trainers.lightning.fitting",
    "trainers.lightning.learner",
    "trainers.lightning.own_settings",
    "trainers.lightning.trainer",
    "trainers.lightning.worker",
    "trainers.network.logged_values",
    "trainers.network.plain_state",
    "trainers.network.steps",
}
ACCELERATE = NETWORK | {
    "trainers.network.later_replay",
    "trainers.network.accelerate_state",
    "data.class_balance",
    "trainers.accelerate",
    "trainers.accelerate.own_settings",
    "trainers.accelerate.training_loop",
    "trainers.accelerate.trainer",
    "trainers.accelerate.worker",
    "trainers.network.logged_values",
    "trainers.network.plain_state",
    "trainers.network.steps",
}
TRANSFORMERS = NETWORK | {
    "trainers.network.dataset_checks",
    "trainers.network.later_replay",
    "trainers.network.accelerate_state",
    "trainers.network.fine_tuning",
    "trainers.network.plain_state",
    "trainers.transformers",
    "trainers.transformers.batches",
    "trainers.transformers.fitting",
    "trainers.transformers.given_weights",
    "trainers.transformers.learner",
    "trainers.transformers.logits",
    "trainers.transformers.own_settings",
    "trainers.transformers.trainer",
    "trainers.transformers.worker",
    "trainers.network.steps",
}
BOOSTING = {
    "trainers.boosting",
    "trainers.boosting.loop",
    "trainers.boosting.promise",
    "trainers.boosting.ray_shards",
    "trainers.boosting.replay",
    "trainers.boosting.results",
    "trainers.boosting.rounds",
    "trainers.boosting.table_rows",
    "trainers.boosting.worker",
    "trainers.early_stopping",
    "trainers.entry",
}
XGBOOST = BOOSTING | {
    "trainers.xgboost",
    "trainers.xgboost.boosting",
    "trainers.xgboost.communicator",
    "trainers.xgboost.objectives",
    "trainers.xgboost.own_settings",
    "trainers.xgboost.trainer",
    "trainers.xgboost.worker",
}
LIGHTGBM = BOOSTING | {
    "trainers.lightgbm",
    "trainers.lightgbm.boosting",
    "trainers.lightgbm.network",
    "trainers.lightgbm.objectives",
    "trainers.lightgbm.own_settings",
    "trainers.lightgbm.text",
    "trainers.lightgbm.trainer",
    "trainers.lightgbm.worker",
}
TABLES = {
    "data.sources.parquet_files",
    "data.sources.parquet_index",
    "data.sources.places",
    "data.sources.plain_files",
    "data.sources.table",
    "data.sources.unchanged",
    "data.tables",
    "data.tables.changed_features",
    "data.tables.encoding",
    "data.tables.ingest",
    "data.tables.keys",
    "data.tables.preparation",
    "data.tables.quotes",
    "data.tables.reading",
    "data.tables.recognition",
    "data.tables.shards",
    "data.tables.statistics",
    "data.tables.suspicions",
    "data.tables.targets",
    "data.tables.typed_copy",
    "data.tables.unpacking",
    "data.tables.values",
}
TEXT = (TABLES - {"data.sources.table", "data.tables.unpacking"}) | {
    "data.sources.folder_listing",
    "data.sources.text",
    "data.tables.table_check",
    "data.text",
    "data.text.class_files",
    "data.text.copies",
    "data.text.plain_texts",
    "data.text.preparation",
    "data.text.shards",
    "data.text.text_check",
    "data.text.tokenizers",
    "data.text.tokenizers_found",
    "data.text.unpacking",
}
IMAGE_CLASSIFIER = COMMON | TORCH | {"problems.objectives.classification"}
IDX = {"data.sources.download", "data.sources.idx", "data.sources.places", "data.sources.published"}
CIFAR = {"data.sources.archives", "data.sources.cifar", "data.sources.download", "data.sources.places"}
MODULES = {
    "digits": IMAGE_CLASSIFIER | {"data.sources.digits", "data.sources.installed"},
    "digits-lightning": COMMON
    | LIGHTNING
    | {"problems.objectives.classification", "data.sources.digits", "data.sources.installed"},
    "digits-accelerate": COMMON
    | ACCELERATE
    | {"problems.objectives.classification", "data.sources.digits", "data.sources.installed"},
    "digits-keras": COMMON
    | KERAS
    | {"problems.objectives.classification", "data.sources.digits", "data.sources.installed"},
    "digits-tensorflow": COMMON
    | TENSORFLOW
    | {"problems.objectives.classification", "data.sources.digits", "data.sources.installed"},
    "fashion-mnist": IMAGE_CLASSIFIER | IDX,
    "mnist": IMAGE_CLASSIFIER | IDX,
    "cifar10-resnet": IMAGE_CLASSIFIER | CIFAR,
    "cifar10-vit": IMAGE_CLASSIFIER | CIFAR,
    "diabetes": COMMON | TORCH | TABLES | {"problems.objectives.regression"},
    "breast-cancer": COMMON | XGBOOST | TABLES | {"problems.objectives.classification"},
    "breast-cancer-lightgbm": COMMON | LIGHTGBM | TABLES | {"problems.objectives.classification"},
    "rt-polarity-mean": IMAGE_CLASSIFIER | TEXT,
    "rt-polarity": COMMON | TRANSFORMERS | TEXT | {"problems.objectives.classification"},
    "dreambooth": COMMON
    | ACCELERATE
    | {"problems.objectives.denoising"}
    | {f"data.sources.{name}" for name in ("folder", "folder_listing", "places", "plain_files", "unchanged")},
    "rt-polarity-gpt2": COMMON | TRANSFORMERS | TEXT | {"problems.objectives.language_model"},
}
KINDS = {
    "digits": "digits",
    "digits-accelerate": "digits",
    "digits-keras": "digits",
    "digits-lightning": "digits",
    "digits-tensorflow": "digits",
    "fashion-mnist": "idx",
    "mnist": "idx",
    "cifar10-resnet": "cifar",
    "cifar10-vit": "cifar",
    "diabetes": "table",
    "breast-cancer": "table",
    "breast-cancer-lightgbm": "table",
    "rt-polarity": "text",
    "rt-polarity-mean": "text",
    "rt-polarity-gpt2": "text",
    "dreambooth": "folder",
}


def files_of(kind: str) -> SourceFiles:
    return SourceFiles(kind=kind, root="/data/raw", origin="", digest="0" * 64, files=1, bytes=1)


def code_of_recipe(name: str) -> dict[str, str]:
    recipe, ref = load(name)
    return code_of(files_of(KINDS[name]), recipe.settings.trainer, ref.problem)


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_modules_of_each_recipe_that_comes_along(name: str) -> None:
    assert set(code_of_recipe(name)) == {f"training.{module}" for module in MODULES[name]}


@pytest.mark.parametrize("name", ["digits", "fashion-mnist", "cifar10-vit"])
def test_the_module_of_the_recipe_s_source_counts(name: str, tmp_path: Path) -> None:
    source = choose_source(load(name)[0], tiny_settings(), Home(tmp_path))
    assert type(source).__module__ in transform_modules(files_of(KINDS[name]))


# What the computing modules import from modules whose code is not in the run key. Before a name is added here: could a
# change of its code change the weights? Then the code belongs in a computing room.
# Records, errors and settings hold no code that computes.
NO_CODE = {"training.records", "training.errors", "training.settings.schema"}
IMPORTED_FROM_OUTSIDE = {
    "attempts.fence": {"Fence"},
    "attempts.heartbeat": {"Heartbeat", "furthest_step"},
    "attempts.history": {"Attempt", "note"},
    "attempts.job": {"TrainingJob"},
    "attempts.metrics": {"MetricsFile"},
    "checkpoints.checkpoint_files": {"contract"},
    "checkpoints.checkpoint_log": {"CheckpointLog", "Position"},
    "checkpoints.parts": {"OwnRows", "StoredRows", "whole"},
    "checkpoints.writers": {"Writers"},
    "checkpoints.opening": {"different_checkpoints", "open_checkpoints"},
    "checkpoints.weights": {"DTYPE_NAMES", "load_weights", "save_weights", "weights_digest"},
    "code_closure": {"code_digests"},
    "machine": {"available_cpus"},
    "network_addresses": {"INTERFACE", "own_address"},
    "recipe": {"BuildModel", "Recipe", "modules_set_aside", "reload"},
    "recipe_checks": {"check_augmentation_of"},
    "recipe_errors": {"named_as"},
    "recipe_metrics": {"RecipeMetrics"},
    "seams": {"PROBLEMS", "TrainerName", "install_command", "trainer_part"},
    "settings.sections": {"ClassWeights", "Threshold", "WeighingSettings"},
    "storage.given_paths": {"expanded", "named"},
    "storage.files": {
        "atomic_file",
        "atomic_folder",
        "canonical_json",
        "copy_checked",
        "digest_file",
        "digest_json",
        "remove_folder",
        "temporary_folder",
        "write_text",
    },
    "storage.paths": {"Home", "RunPaths", "TRAINED"},
    "text_shape": {"TextShape"},
    "storage.record_files": {"DamagedError", "find_record", "read_record", "record_text", "write_record"},
}


def test_what_computing_modules_import_from_modules_that_do_not_count() -> None:
    imported: dict[str, set[str]] = {}
    for name in {module for recipe in BUILT_IN for module in code_of_recipe(recipe)}:
        file = code_closure._file(name)
        assert file is not None
        for node in code_closure._executed(ast.parse(file.read_text())):
            module = getattr(node, "module", None) or ""
            if (
                not isinstance(node, ast.ImportFrom)
                or not module.startswith("training.")
                or module in NO_CODE
            ):
                continue
            for alias in node.names:
                if code_closure._file(f"{module}.{alias.name}") is None and not module.startswith(COMPUTING):
                    imported.setdefault(module.removeprefix("training."), set()).add(alias.name)
    assert imported == IMPORTED_FROM_OUTSIDE


SAME = {
    "a comment": "def f(x):\n    return x + 1  # more\n",
    "a docstring": 'def f(x):\n    """Adds one."""\n    return x + 1\n',
    "layout": "def f( x ) :\n\n    return (x +\n            1)\n",
    "a block for type checkers": (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import os\ndef f(x):\n    return x + 1\n"
    ),
}
OTHER = {
    "a number": "def f(x):\n    return x + 2\n",
    "a number of another type": "def f(x):\n    return x + 1.0\n",
    "a name": "def g(x):\n    return x + 1\n",
    "an order": "def f(x):\n    return 1 + x\n",
    "a default": "def f(x=None):\n    return x + 1\n",
    "else of a block for type checkers": (
        "if TYPE_CHECKING:\n    import os\nelse:\n    os = None\ndef f(x):\n    return x + 1\n"
    ),
    "elif of a block for type checkers": (
        "if TYPE_CHECKING:\n    import os\nelif f:\n    os = None\ndef f(x):\n    return x + 1\n"
    ),
    "a block that type checkers skip": (
        "if not TYPE_CHECKING:\n    os = None\ndef f(x):\n    return x + 1\n"
    ),
}


@pytest.mark.parametrize("text", SAME.values(), ids=SAME)
def test_what_does_not_execute_does_not_count(text: str) -> None:
    plain = "def f(x):\n    return x + 1\n"
    if "TYPE_CHECKING" in text:
        plain = "from typing import TYPE_CHECKING\n" + plain
    assert source_digest(text) == source_digest(plain)


@pytest.mark.parametrize("text", OTHER.values(), ids=OTHER)
def test_what_executes_counts(text: str) -> None:
    assert source_digest(text) != source_digest("def f(x):\n    return x + 1\n")


def test_an_empty_text_and_none_differ() -> None:
    assert source_digest("x = ''") != source_digest("x = None")
    assert source_digest("x = b''") != source_digest("x = ''")


def test_imports_inside_functions_count_and_those_for_type_checkers_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "training"
    texts = {
        "trainers/one.py": "def run():\n    from training.trainers import two\n    import training.supervision.away\n",
        "trainers/two.py": (
            "if TYPE_CHECKING:\n    from training.trainers.three import X\n"
            "elif TYPE_CHECKING:\n    from training.trainers.three import Y\n"
            "else:\n    from training.trainers.four import X\n"
            "if not TYPE_CHECKING:\n    from training.trainers.five import X\n"
        ),
        "trainers/three.py": "",
        "trainers/four.py": "",
        "trainers/five.py": "",
        "trainers/__init__.py": "",
        "supervision/away.py": "",
    }
    for name, text in texts.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    monkeypatch.setattr(code_closure, "_PACKAGE", package)
    code_closure._read.cache_clear()
    try:
        digests = code_digests("training.trainers.one")
    finally:
        code_closure._read.cache_clear()
    assert set(digests) == {f"training.trainers.{name}" for name in ("one", "two", "four", "five")}


def test_a_root_that_is_no_module_is_named() -> None:
    with pytest.raises(ValueError, match=r"training\.trainers\.nowhere is no module"):
        code_digests("training.trainers.nowhere")


# These find a module by the name of a problem or trainer; `code_of` passes the module to which the name leads. The last
# imports a library.
BY_NAME = {"training.problems.objectives", "training.trainers.base", "training.trainers.tensorflow.library"}


@pytest.mark.extended
def test_no_module_that_computes_is_imported_by_a_computed_name() -> None:
    """Such an import can't be followed. Some modules only ask whether a library is installed."""
    for name in {module for recipe in BUILT_IN for module in code_of_recipe(recipe)} - BY_NAME:
        file = code_closure._file(name)
        assert file is not None
        called = {
            node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, ast.Call)
        }
        assert not called & {"import_module", "__import__", "exec"}, name


@pytest.mark.extended
@pytest.mark.parametrize("recipe", ["digits", "diabetes", "breast-cancer", "breast-cancer-lightgbm"])
def test_a_training_imports_no_module_that_does_not_count(recipe: str, tmp_path: Path) -> None:
    """Every module of the hashed packages that a training imports in a fresh process is in its run key."""
    code = f"""
import sys
sys.path.insert(0, {str(ROOMS.parent / "tests")!r})
from pathlib import Path
import small_runs
from training.identity import code_of
from training.recipe import load
from training.seams import TRAINERS
from training.settings.overrides import resolve
from training.storage.paths import Home
home = Home(Path({str(tmp_path)!r}))
chosen, ref = load({recipe!r})
version = small_runs.prepared(home, chosen.source, ref.name, problem=ref.problem)
before = set(sys.modules)
from training.supervision.launch import launch
limit = "epochs" if chosen.settings.trainer == "torch" else "rounds"
settings = resolve(chosen.settings, {{"scaling": {{"num_workers": 0}}, "training": {{limit: 1}}}})
launch(small_runs.job_for(home, version, settings, {recipe!r}))
computing = {{name for name in sys.modules if name.startswith({COMPUTING!r})}}
counted = set(code_of(chosen.source.fetch(home.sources), settings.trainer, ref.problem))
# Sources of every kind are imported to choose one; row_kinds and versions find the code for tables and for numbers of
# images; a recipe names its problem, of which a training uses the objective.
others = {{"training.data.row_kinds", "training.data.versions"}}
others |= {{f"training.problems.{{name}}" for name in ("base", "classification", "probabilities", "shared")}}
others |= {{f"training.problems.{{name}}" for name in ("regression", "predicted_numbers", "skewed_means")}}
others |= {{"training.problems.interval_texts"}}
others |= {{"training.problems.objectives.classification"}}
others |= {{"training.data.images.augmentation"}}  # a field of every recipe
# Sections of settings, whose values are in the key themselves; a recipe chooses a trainer.
others |= {{name for name in computing if name.endswith((".settings", ".choice"))}}
others |= {{f"training.trainers.{{name}}" for name in TRAINERS}}  # packages around sections; they hold no code
# A profile describes the prepared rows, and changes none.
preparing = ("training.data.sources.", "training.data.tables", "training.data.text", "training.data.profiles")
others |= {{name for name in computing if name.startswith(preparing)}}
print(sorted(computing - counted - others))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
