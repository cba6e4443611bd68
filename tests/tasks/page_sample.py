"""Inputs of a report from a small real computation: two classifiers of scikit-learn's handwritten digits."""

from dataclasses import replace
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256

import numpy as np
from looks import judged
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.neural_network import MLPClassifier

from tasks.report_page.inputs import ReportInputs
from training.problems.probabilities import paired, score, worst_mistakes
from training.records import (
    DatasetVersion,
    EpochMetrics,
    Evaluation,
    Goodput,
    PartFile,
    Release,
    TrainedModel,
    Verdict,
)
from training.settings.overrides import describe
from training.settings.schema import GateSettings, Settings

DIGITS = tuple("0123456789")
HOSTILE = (
    """</table><script>alert(1)</script><img src="https://evil.example/x" onerror='alert(2)'>|`$\\frac{"""
    "\x1b[2J\x9b31m\u202e"
)
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@cache
def digits_run() -> tuple[tuple[EpochMetrics, ...], Arrays]:
    """Train two classifiers of digits: epochs; pixels, labels, probabilities of the candidate and of the champion."""
    images, labels = load_digits(return_X_y=True)
    mixed = np.random.default_rng(0).permutation(len(labels))
    images, labels = images[mixed] / 16, labels[mixed]
    train, validation, test = slice(0, 1100), slice(1100, 1300), slice(1300, None)
    champion = LogisticRegression().fit(images[:450], labels[:450])
    network = MLPClassifier((32,), learning_rate_init=0.006, batch_size=64, random_state=0)
    history = []
    for epoch in range(1, 13):
        network.partial_fit(images[train], labels[train], classes=np.arange(10))
        measured = {}
        for split, rows in (("train", train), ("validation", validation)):
            chances = network.predict_proba(images[rows])
            measured[f"{split}_loss"] = float(log_loss(labels[rows], chances))
            measured[f"{split}_accuracy"] = float((chances.argmax(1) == labels[rows]).mean())
        history.append(
            EpochMetrics(
                epoch=epoch,
                step=18 * epoch,
                learning_rate=0.006,
                images_per_s=9210.4,
                rows=1200,
                checksum=10**10,
                **measured,
            )
        )
    pixels = (images[test].reshape(-1, 1, 8, 8) * 255).astype(np.uint8)
    chances = [model.predict_proba(images[test]).astype(np.float32) for model in (network, champion)]
    return tuple(history), (pixels, labels[test], chances[0], chances[1])


def regrouped(classes: int) -> Arrays:
    """The test rows with 2 classes (even, odd) or a multiple of 10 (each digit split into as many kinds)."""
    pixels, labels, *chances = digits_run()[1]
    if classes == 2:
        ours, theirs = (
            np.stack([probabilities[:, 0::2].sum(1), probabilities[:, 1::2].sum(1)], axis=1)
            for probabilities in chances
        )
        return pixels, labels % 2, ours, theirs
    kinds = classes // 10
    kind = np.arange(len(labels)) % kinds
    spread = np.zeros((2, len(labels), 10, kinds), np.float32)
    for at, probabilities in enumerate(chances):
        spread[at, np.arange(len(labels)), :, kind] = probabilities
    ours, theirs = spread.reshape(2, len(labels), classes)
    return pixels, labels * kinds + kind, ours, theirs


def evaluation(names: tuple[str, ...], with_champion: bool) -> tuple[Evaluation, tuple[np.ndarray, ...]]:
    """An evaluation of the two classifiers, and the pictures of the candidate's most confident mistakes."""
    pixels, labels, ours, theirs = regrouped(len(names))
    mistakes = worst_mistakes(labels, ours, names, limit=12)
    made = Evaluation(
        rows=len(labels),
        candidate=score(labels, ours, names, 0.95, 0.061, 16_400),
        champion=score(labels, theirs, names, 0.95, 0.042, 23_800) if with_champion else None,
        champion_version="6" if with_champion else None,
        mistakes=mistakes,
        predictions="predictions.parquet",
        **paired(labels, ours, theirs if with_champion else None).model_dump(),
    )
    return made, tuple(pixels[mistake.row] for mistake in mistakes)


KEY, DATA, WEIGHTS, SOURCE = (
    sha256(name.encode()).hexdigest() for name in ("run", "data", "weights", "source")
)
TRAINING = {"start_up": 18.96, "data_wait": 1.13, "compute": 48.88, "communication": 7.02, "checkpoint": 2.05}
BEFORE, AFTER = (
    {"download": 0.41, "prepare": 6.24},
    {"lost_to_failures": 4.31, "evaluation": 3.33, "orchestration": 1.04},
)


def release(verdict: Verdict) -> Release:
    """The release that results from a verdict."""
    return Release(
        recipe="digits",
        run_key=KEY,
        dataset_fingerprint=DATA,
        evaluation="",
        weights_digest=WEIGHTS,
        model="digits",
        version="7",
        alias="champion" if verdict.promote else "challenger",
        train_rows=1460,
        test_rows=337,
        epochs=20,
        selected_epoch=14,
        verdict=verdict,
        metrics={},
        mlflow_run_id=KEY[:32],
        report="report.html",
        seconds=93.37,
        goodput=Goodput(total_s=93.37, parts=BEFORE | TRAINING | AFTER),
    )


def trained() -> TrainedModel:
    """The record of the candidate's training."""
    history = digits_run()[0]
    return TrainedModel(
        run_key=KEY,
        weights="weights.safetensors",
        weights_digest=WEIGHTS,
        selected_epoch=min(history, key=lambda row: row.validation_loss).epoch,
        steps=history[-1].step,
        world_size=2,
        device="cpu",
        history=history,
        seconds=78.04,
        goodput=Goodput(total_s=78.04, parts=TRAINING),
    )


def dataset(names: tuple[str, ...], test_rows: tuple[int, ...]) -> DatasetVersion:
    """The digits as a dataset version whose classes are `names`."""
    return DatasetVersion(
        name="digits",
        fingerprint=DATA,
        path="datasets/digits",
        classes=names,
        shape=(1, 8, 8),
        parts={
            split: (PartFile(path=f"{split}/part-0.parquet", rows=rows, bytes=rows * 71, sha256=SOURCE),)
            for split, rows in (("train", 1300), ("test", sum(test_rows)))
        },
        label_counts={"train": tuple(1300 // len(names) for _ in names), "test": test_rows},
        mean=(0.3053,),
        std=(0.3763,),
        source_digest=SOURCE,
        source_origin="scikit-learn load_digits",
        dropped=("scan-17.png: cannot be decoded", "scan-90.png: 7x8 pixels, expected 8x8"),
    )


def report(names: tuple[str, ...] = DIGITS, with_champion: bool = True, floor: float = 0.9) -> ReportInputs:
    """Inputs of a report as a retraining of the digits creates them; no candidate reaches a floor of 0.99."""
    compared, pictures = evaluation(names, with_champion)
    return ReportInputs(
        release=release(judged(compared, GateSettings(floor=floor, policy="not_worse", margin=0.04))),
        trained=trained(),
        evaluation=compared,
        dataset=dataset(names, tuple(class_score.rows for class_score in compared.candidate.classes)),
        settings=describe(Settings()),
        ingredients={
            "data": DATA,
            "recipe": {"name": "digits", "source": SOURCE[::-1]},
            "code": KEY[::-1],
            "versions": {"torch": "2.14.0", "torchvision": "0.29.0", "numpy": "2.4.6"},
        },
        changes=(
            "data: +250 images (crosses: new class, 150), 0 removed",
            "settings.training.epochs: 10 -> 12",
        ),
        example_pictures=pictures,
        commands=(
            ("evergreen predict digits --input new/", "Scores new images with the champion."),
            ("evergreen rollback digits", "Returns to the champion before this one."),
        ),
        created=datetime(2025, 11, 21, 2, 52, tzinfo=UTC),
    )


def hostile() -> ReportInputs:
    """Inputs of a report in which every text from data or settings contains an HTML injection."""
    inputs = report(names=(HOSTILE, *DIGITS[1:]))
    release = inputs.release.model_copy(
        update={"recipe": HOSTILE, "model": HOSTILE, "version": HOSTILE, "mlflow_run_id": HOSTILE}
    )
    rules = [
        rule.model_copy(update={"name": HOSTILE, "explanation": HOSTILE}) for rule in release.verdict.rules
    ]
    verdict = release.verdict.model_copy(
        update={"summary": HOSTILE, "rules": rules, "policy": {HOSTILE: HOSTILE}}
    )
    parts = Goodput(total_s=1, parts={HOSTILE: 1.0})
    return replace(
        inputs,
        release=release.model_copy(update={"verdict": verdict, "goodput": parts}),
        trained=inputs.trained.model_copy(update={"device": HOSTILE}),
        dataset=inputs.dataset.model_copy(
            update={"name": HOSTILE, "source_origin": HOSTILE, "dropped": (HOSTILE, "name \udce9 of bytes")}
        ),
        settings={HOSTILE: HOSTILE},
        ingredients={"recipe": {"name": HOSTILE}, "versions": {HOSTILE: HOSTILE}},
        changes=(HOSTILE,),
        commands=((HOSTILE, HOSTILE),),
    )
