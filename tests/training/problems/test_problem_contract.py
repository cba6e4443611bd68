"""Classification, regression, language modelling and denoising keep the contract of a problem."""

import numpy as np
import torch
from problem_contract import ROWS, ProblemContract

from training.problems.base import Predictions, Problem, Targets
from training.problems.classification import Classification
from training.problems.denoising import Denoising
from training.problems.language_model import LanguageModel
from training.problems.regression import Regression
from training.records import DatasetVersion, ProblemName, TableColumn, TableSchema, TextEncoding

CLASSES = ("amber", "blue", "coral")


def version_of(problem: ProblemName, classes: tuple[str, ...], table: TableSchema | None) -> DatasetVersion:
    return DatasetVersion(
        name="rows",
        fingerprint="0" * 64,
        path="/data/rows",
        classes=classes,
        shape=(1,),
        parts={"train": (), "test": ()},
        label_counts={"train": (), "test": ()},
        mean=(),
        std=(),
        source_digest="0" * 64,
        source_origin="a test",
        problem=problem,
        table=table,
    )


class TestClassification(ProblemContract):
    def problem(self) -> Problem:
        return Classification()

    def version(self) -> DatasetVersion:
        return version_of("classification", CLASSES, None)

    def targets(self) -> Targets:
        return np.arange(ROWS, dtype=np.int64) % len(CLASSES)

    def perfect(self) -> Predictions:
        return np.eye(len(CLASSES), dtype=np.float32)[self.targets()]


class TestRegression(ProblemContract):
    def problem(self) -> Problem:
        return Regression()

    def version(self) -> DatasetVersion:
        columns = (TableColumn(name="weight", kind="number"),)
        return version_of(
            "regression", (), TableSchema(target="price", columns=columns, target_mean=300, target_std=40)
        )

    def targets(self) -> Targets:
        drawn = 300 + 40 * np.random.default_rng(3).normal(size=ROWS)
        return drawn.astype(np.float32).astype(np.float64)  # numbers that a prediction can reach exactly

    def perfect(self) -> Predictions:
        return self.targets().astype(np.float32)


class TestDenoising(ProblemContract):
    def problem(self) -> Problem:
        return Denoising()

    def version(self) -> DatasetVersion:
        return version_of("denoising", CLASSES, None)

    def targets(self) -> Targets:
        return np.arange(ROWS, dtype=np.int64) % len(CLASSES)

    def perfect(self) -> Predictions:
        return np.zeros((ROWS, len(CLASSES)), np.float32)

    def outputs(self, seed: int = 0) -> torch.Tensor:
        """Errors above 0."""
        drawn = torch.rand((ROWS, len(CLASSES)), generator=torch.Generator().manual_seed(seed))
        return (drawn + 0.1).requires_grad_()


class TestLanguageModel(ProblemContract):
    def problem(self) -> Problem:
        return LanguageModel()

    def version(self) -> DatasetVersion:
        encoding = TextEncoding(length=12, vocabulary=50, padding=0, tokenizer="0" * 64, trained=True)
        columns = (TableColumn(name="text", kind="text"),)
        mean = float(self.targets().mean())
        schema = TableSchema(target="tokens", columns=columns, target_mean=mean, text=encoding)
        return version_of("language_model", (), schema)

    def targets(self) -> Targets:
        return 1.0 + np.arange(ROWS) % 11

    def perfect(self) -> Predictions:
        return np.stack([np.zeros(ROWS), self.targets()], axis=1).astype(np.float32)

    def outputs(self, seed: int = 0) -> torch.Tensor:
        """Losses above 0, and the numbers of tokens."""
        losses = torch.rand(ROWS, generator=torch.Generator().manual_seed(seed)) + 0.1
        return torch.stack([losses, torch.from_numpy(self.targets()).float()], dim=1).requires_grad_()


def test_purposes_say_what_a_model_does() -> None:
    def said(contract: ProblemContract, rows: str) -> str:
        return contract.problem().purpose(rows, contract.version())

    names = ", ".join(CLASSES)
    assert (
        said(TestClassification(), "grey images")
        == f"Classifies grey images into {len(CLASSES)} classes: {names}"
    )
    assert (
        said(TestRegression(), "2 columns of a table")
        == "Predicts price as a number, from 2 columns of a table"
    )
    assert said(TestLanguageModel(), "text of at most 12 tokens") == (
        "Predicts each next token of text of at most 12 tokens"
    )
    assert said(TestDenoising(), "grey images") == (
        f"Predicts the noise in noisy grey images, of {len(CLASSES)} classes: {names}, and so generates such images"
    )
