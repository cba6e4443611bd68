"""A network on a table as a registered model: its weights, its program, and what must not be in its folder."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from format_contract import FormatContract, Stored, edit
from logged_before import log_program, metadata_before
from raw_predictions import every_kind
from small_runs import job_for

from tasks.model_formats import torch_export
from tasks.registry.aliases import load_version
from tasks.registry.safe_loading import check_files
from training.errors import DataError
from training.recipe import load
from training.records import DatasetVersion, TrainedModel
from training.settings.overrides import resolve
from training.storage.paths import Home
from training.supervision.launch import launch
from training.trainers.network.serving import serving_module

_TIED = """
from torch import nn

from evergreen import Classification, Recipe, Table, Torch


class Tied(nn.Module):
    def __init__(self, features, outputs):
        super().__init__()
        self.first = nn.Linear(features, features)
        self.second = nn.Linear(features, features)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(features)
        self.head = nn.Linear(features, outputs)

    def forward(self, rows):
        return self.head(self.norm(self.second(self.first(rows).relu())))


def build_model(shape, outputs):
    return Tied(shape[0], outputs)


recipe = Recipe(
    "tied", "for a test", Table("every.csv", target="price"), problem=Classification(), trainer=Torch(build_model)
)
"""


class TestProgramsKeepTheContract(FormatContract):
    """The promises of a format, kept by programs of torch.export."""

    name = "torch_export"
    trainer = "torch"

    def train(self, home: Home) -> tuple[str, DatasetVersion, TrainedModel]:
        version = every_kind(home, "classification")
        file = home.root / "tied.py"
        file.write_text(_TIED)
        recipe, _ = load(str(file))
        here = {"scaling": {"num_workers": 0, "use_gpu": "no"}, "training": {"epochs": 1}}
        return str(file), version, launch(job_for(home, version, resolve(recipe.settings, here), str(file)))

    def log_before(self, run_id: str, stored: Stored) -> str:
        version, weights = stored.version, stored.trained.weights
        module = serving_module(load(stored.recipe)[0], version, stored.trained)
        return log_program(module, run_id, version, weights, stored.inputs[:4], metadata_before(version))

    def check_ties(self, stored: Stored) -> None:
        weights = safetensors.torch.load_file(stored.files / torch_export.WEIGHTS_FILE)
        assert torch.equal(weights["first.weight"], weights["second.weight"])
        program = torch.export.load(stored.files / torch_export.MODEL_FILE).module().state_dict()
        for name in ("first.weight", "second.weight", "head.bias"):
            assert torch.equal(program[f"model.{name}"], weights[name])

    @pytest.mark.parametrize(
        ("change", "why"),
        [
            (lambda flavors: flavors["pytorch"].update(code="code"), "it brings code"),
            (lambda flavors: flavors["pytorch"].update(model_data="extra_files"), "loaded from extra_files"),
            (lambda flavors: flavors["pytorch"].update(extra_files=[{"path": "x"}]), "other extra files"),
            (lambda flavors: flavors.update(sklearn={}), "its flavors are"),
            (lambda flavors: flavors["python_function"].update(config={"device": "x"}), "has config"),
        ],
    )
    def test_a_description_that_evergreen_would_not_write_is_refused(
        self, changed: Stored, change: Callable[[dict[str, Any]], None], why: str
    ) -> None:
        edit(changed.files, change)
        self.refused(changed, why)

    def test_links_are_refused(self, changed: Stored, tmp_path: Path) -> None:
        for number, file in enumerate((torch_export.MODEL_FILE, torch_export.WEIGHTS_FILE)):
            folder = tmp_path / str(number)
            shutil.copytree(changed.files, folder)
            (folder / file).rename(tmp_path / f"elsewhere{number}")
            (folder / file).symlink_to(tmp_path / f"elsewhere{number}")
            with pytest.raises(DataError, match="is no regular file"):
                check_files(folder, "model every version 1", {})
        assert load_version(changed.home, "every", "1").outputs == 2
