"""Causal language modelling: predict each token of a text from the tokens before it, scored by the perplexity.

Throughout, `targets` is float64 (rows,): the number of predicted tokens of each text. `predictions` is float32 (rows,
2): the mean loss of a text's predicted tokens in nats, and their number by the tokenizer of the model that predicted.
Their product is the negative log-likelihood of the text, which models with different tokenizers share. All losses per
token are divided by `targets`, so that two models are compared by the same numbers of tokens.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt
from pydantic import Field

from training.errors import TrainingError
from training.problems.base import Predictions, Weights
from training.problems.interval_texts import interval_in_log, interval_text
from training.problems.objectives.language_model import LanguageModelObjective, most_rows
from training.problems.shared import SharedMethods
from training.problems.skewed_means import Numbers, mean_interval
from training.records import (
    DatasetVersion,
    EpochMetrics,
    Evaluation,
    LargestError,
    ProblemName,
    Score,
    TableSchema,
)

_LARGEST = 700.0  # mean loss whose exponential is still a float
_WORST = 24
_LOSSES = "the losses per token of the test texts"


class LanguageModelScore(Score):
    """Scores of one language model on the test texts; `low` to `high` is the interval of `perplexity`."""

    problem: ProblemName = "language_model"
    perplexity: float = Field(description="exponential of `loss_per_token`")
    loss_per_token: float = Field(description="sum of the losses of all tokens / number of tokens, in nats")
    tokens: int = Field(description="predicted tokens of the test texts, by the candidate's tokenizer")
    rows_per_s: float


@dataclass(frozen=True)
class LanguageModel(LanguageModelObjective, SharedMethods):
    """Predict each token of a text from the tokens before it; see :class:`training.problems.base.Problem`.

    The source is `Text(path, text=...)`; a target column is not read.
    """

    name: ProblemName = "language_model"
    greater_is_better: bool = False
    metric_word: str = "perplexity"
    predicts_text: bool = True
    model_type: ClassVar[str] = "text"
    score_record: ClassVar[type[Score]] = LanguageModelScore
    finite: ClassVar[tuple[str, ...]] = ("perplexity", "low", "high", "loss_per_token")

    def rows_at_once(self, outputs: int, table: TableSchema | None) -> int:
        """Fewer rows for longer rows and larger vocabularies, as a row has a logit for each token and each id."""
        if table is None or table.text is None:
            return super().rows_at_once(outputs, table)
        return most_rows(table.text)

    def prediction_shape(self, version: DatasetVersion) -> tuple[int, ...]:
        """Loss per token, and number of tokens."""
        del version
        return (2,)

    def score(
        self,
        targets: Numbers,
        predictions: Predictions,
        version: DatasetVersion,
        confidence: float,
        latency_ms: float,
        rows_per_s: float,
        weights: Weights | None = None,
    ) -> LanguageModelScore:
        """See :func:`score`."""
        del version, weights
        return score(targets, predictions, confidence, latency_ms, rows_per_s)

    def row_columns(self, targets: Numbers, predictions: Predictions) -> dict[str, npt.NDArray[Any]]:
        """The negative log-likelihood of each text in nats, and its number of tokens by the model's tokenizer."""
        del targets
        return {"": nats(predictions), "_tokens": predictions[:, 1].astype(np.float64)}

    def findings(
        self,
        targets: Numbers,
        candidate: Predictions,
        champion: Predictions | None,
        version: DatasetVersion,
    ) -> dict[str, Any]:
        """The texts with the candidate's largest loss per token: `truth` is the number of tokens."""
        del champion, version
        worst = np.argsort(-candidate[:, 0], kind="stable")[:_WORST]
        return {
            "largest_errors": tuple(
                LargestError(row=row, truth=float(targets[row]), predicted=float(candidate[row, 0]))
                for row in worst.tolist()
            )
        }

    def own(self, score: Score) -> LanguageModelScore:
        """See :class:`SharedMethods`."""
        return cast(LanguageModelScore, super().own(score))

    def floor_value(self, score: Score) -> float:
        """1 / perplexity: the geometric mean of the probabilities given to the tokens; 1 if each is certain."""
        return 1 / self.own(score).perplexity

    def floor_text(self, value: float) -> tuple[str, str]:
        """The quotient with four significant digits, and the perplexity."""
        return "1 / perplexity", f"{value:.4g}"

    def spell(self, value: float) -> str:
        """A perplexity with four significant digits."""
        return shown(value)

    def further_scores(self, metrics: Mapping[str, float]) -> list[tuple[str, str]]:
        """The loss per token."""
        return [("loss per token", f"{metrics['loss_per_token']:.4f} nats")]

    def headline(self, score: Score) -> str:
        """The perplexity with its interval, and the loss per token."""
        own_score = self.own(score)
        return (
            f"test perplexity {shown(own_score.perplexity)} ({interval_in_log(own_score, shown, _LOSSES)}), "
            f"{own_score.loss_per_token:.4f} nats per token"
        )

    def purpose(self, rows: str, version: DatasetVersion) -> str:
        """What the model predicts of each text."""
        del version
        return f"Predicts each next token of {rows}"

    def in_words(self, score: Score, rows: str) -> str:
        """The perplexity with its interval, and the number of tokens."""
        own_score = self.own(score)
        interval = interval_text(own_score, shown, _LOSSES)
        return (
            f"perplexity {shown(own_score.perplexity)} ({interval}) on {own_score.tokens:,} tokens of {rows}"
        )

    def against(self, candidate: Score, champion: Score) -> str:
        """Both perplexities."""
        return f"perplexity {shown(self.own(candidate).perplexity)} against {shown(self.own(champion).perplexity)}"

    def release_metrics(
        self,
        candidate: Score,
        champion: Score | None,
        selected: EpochMetrics,
    ) -> dict[str, float]:
        """Test scores, those on the validation rows, and `champion_perplexity` if there is a champion."""
        ours = self.own(candidate)
        numbers = {
            "perplexity": ours.perplexity,
            "perplexity_low": ours.low,
            "perplexity_high": ours.high,
            "loss_per_token": ours.loss_per_token,
            "validation_loss": selected.validation_loss,
            "validation_perplexity": selected.validation_score,
            "latency_ms": ours.latency_ms,
        }
        return numbers | ({} if champion is None else {"champion_perplexity": self.own(champion).perplexity})

    def recounted(
        self, targets: Numbers, columns: Mapping[str, npt.NDArray[Any]], evaluation: Evaluation
    ) -> dict[str, tuple[float, float]]:
        """Perplexity and loss per token of the candidate, and the champion's perplexity."""
        ours, again = self.own(evaluation.candidate), _loss(targets, columns["candidate"])
        pairs = {
            "perplexity": (ours.perplexity, perplexity_of(again)),
            "loss_per_token": (ours.loss_per_token, again),
        }
        if "champion" in columns and evaluation.champion is not None:
            theirs = perplexity_of(_loss(targets, columns["champion"]))
            pairs["champion_perplexity"] = (self.own(evaluation.champion).perplexity, theirs)
        return pairs


def score(
    targets: Numbers, predictions: Predictions, confidence: float, latency_ms: float, rows_per_s: float
) -> LanguageModelScore:
    """All scores of one model.

    The loss per token is a quotient of two sums over texts, which are the independent units: `low` and `high` are
    :func:`mean_interval` of loss per token + (nats of the text - loss per token * its tokens) / mean tokens, whose mean
    is the loss per token (W. Cochran, Sampling Techniques, 3rd edition 1977, section 6.4), as perplexities.

    Raises :class:`TrainingError` when a prediction is NaN or infinite, and ValueError when shapes or targets are
    impossible.
    """
    _check(targets, predictions)
    losses = nats(predictions)
    loss = _loss(targets, losses)
    low, high = mean_interval(loss + (losses - loss * targets) / targets.mean(), confidence)
    return LanguageModelScore(
        perplexity=perplexity_of(loss),
        low=min(perplexity_of(max(0.0, low)), perplexity_of(loss)),
        high=max(perplexity_of(high), perplexity_of(loss)),
        loss_per_token=loss,
        tokens=int(targets.sum()),
        confidence=confidence,
        latency_ms=latency_ms,
        rows_per_s=rows_per_s,
    )


def nats(predictions: Predictions) -> Numbers:
    """Negative log-likelihood of each text."""
    product: Numbers = predictions[:, 0].astype(np.float64) * predictions[:, 1].astype(np.float64)
    return product


def shown(value: float) -> str:
    """`value` with four significant digits; from 1,000 on as a whole number, from 1e15 on with an exponent."""
    return f"{value:,.0f}" if 1000 <= value < 1e15 else f"{value:.4g}"


def _loss(targets: Numbers, losses: Numbers) -> float:
    return float(losses.sum()) / float(targets.sum())


def perplexity_of(loss: float) -> float:
    """The perplexity of a mean loss per token, in nats."""
    return math.exp(min(loss, _LARGEST))


def _check(targets: Numbers, predictions: Predictions) -> None:
    if targets.ndim != 1 or not np.isfinite(targets).all() or not targets.sum() > 0:
        raise ValueError("targets must be numbers of tokens, not all 0")
    if predictions.shape != (len(targets), 2):
        raise ValueError(f"predictions must have shape {(len(targets), 2)}, got {predictions.shape}")
    broken = np.flatnonzero(~np.isfinite(predictions).all(axis=1))
    if len(broken):
        raise TrainingError(
            f"test row {broken[0]}: the model's loss is not finite ({len(broken)} of {len(predictions)} rows). Its "
            "weights or activations overflowed: lower training.learning_rate, clip gradients, or use "
            "training.precision=float32."
        )
