"""Losses of a language model: which tokens count, how rows are added up, and what two models are compared by."""

import math
import re
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from test_problem_contract import TestLanguageModel as Contract
from torch import nn
from torch.nn import functional

from tasks.gate.outcomes import gate_of
from tasks.problems.language_model.outputs import TextOutputs
from training.errors import TrainingError
from training.problems.language_model import LanguageModel, score
from training.problems.objectives.language_model import row_losses
from training.text_shape import TextShape

PADDING, LENGTH, VOCABULARY = 0, 6, 9
IDS = torch.tensor([[3, 1, 4, 1, 5, 8], [2, 7, 1, PADDING, PADDING, PADDING], [6, *[PADDING] * 5]])


def logits() -> torch.Tensor:
    return torch.randn((3, LENGTH, VOCABULARY), generator=torch.Generator().manual_seed(1))


def test_each_token_after_the_first_counts_and_padding_does_not() -> None:
    given = logits()
    losses = row_losses(given, IDS, PADDING)
    each = torch.log_softmax(given, 2)
    first = -sum(each[0, at, IDS[0, at + 1]] for at in range(5)) / 5
    second = -(each[1, 0, 7] + each[1, 1, 1]) / 2
    assert torch.allclose(losses, torch.tensor([[first, 5], [second, 2], [0, 0]]))
    given[1, 2:] = given[0, 5] = 1e4  # logits after which no token is predicted
    assert torch.equal(row_losses(given, IDS, PADDING), losses)


def test_a_step_s_loss_is_the_mean_over_its_tokens_however_rows_are_divided() -> None:
    """The gradient of workers' and passes' sums is that of one cross-entropy over all tokens."""
    problem, version = LanguageModel(), Contract().version()
    assert version.table is not None
    parts, whole = logits().requires_grad_(), logits().requires_grad_()
    for rows in (slice(0, 1), slice(1, 3)):
        output = row_losses(parts[rows], IDS[rows], PADDING)
        problem.torch_sums(output, torch.zeros(3), version)[0].backward()
    wanted = IDS[:, 1:].masked_fill(IDS[:, 1:] == PADDING, -100)
    loss = functional.cross_entropy(whole[:, :-1].flatten(0, 1), wanted.flatten())
    (loss * 7 / version.table.target_mean).backward()  # 7 tokens
    assert parts.grad is not None
    assert whole.grad is not None
    assert torch.allclose(parts.grad, whole.grad, atol=1e-7)


class Bigrams(nn.Module):
    def __init__(self, size: int):
        super().__init__()
        self.table = nn.Embedding(size, size)

    def forward(self, input_ids: torch.Tensor) -> Any:
        return SimpleNamespace(logits=self.table(input_ids))


def test_the_recipe_s_module_keeps_the_names_of_its_weights_and_gives_losses() -> None:
    build = LanguageModel().adapted(lambda _, outputs: Bigrams(outputs))
    module = build(TextShape(LENGTH, VOCABULARY, PADDING), 2)
    assert list(module.state_dict()) == ["table.weight"]
    expected = row_losses(module.get_submodule("table")(IDS), IDS, PADDING)
    assert torch.equal(module(IDS), expected)
    assert torch.equal(module(input_ids=IDS), expected)


def test_a_module_without_logits_for_each_token_is_refused() -> None:
    build = LanguageModel().adapted(lambda _, outputs: nn.Sequential(nn.Embedding(outputs, 4), nn.Flatten()))
    with pytest.raises(
        TrainingError, match=re.escape("shape (3, 24); a language model needs logits of shape")
    ):
        build(TextShape(LENGTH, VOCABULARY, PADDING), 2)(IDS)


def test_the_perplexity_weighs_tokens_and_not_texts() -> None:
    tokens = np.array([1.0, 9.0])
    result = score(tokens, np.array([[5.0, 1.0], [1.0, 9.0]], np.float32), 0.95, 1.0, 1.0)
    assert result.loss_per_token == pytest.approx(1.4)
    assert result.perplexity == pytest.approx(math.exp(1.4))
    assert result.low <= result.perplexity <= result.high


def test_the_interval_holds_the_true_perplexity_as_often_as_it_says() -> None:
    """Texts of different lengths, whose tokens have losses of mean 2 that depend on the text."""
    draw, hits, tries = np.random.default_rng(0), 0, 400
    for _ in range(tries):
        tokens = draw.integers(1, 40, 200).astype(np.float64)
        losses = draw.gamma(4, 0.5, 200)
        result = score(tokens, np.stack([losses, tokens], 1).astype(np.float32), 0.95, 1.0, 1.0)
        hits += result.low <= math.exp(2) <= result.high
    assert 0.92 < hits / tries < 0.98


def test_models_with_different_tokenizers_are_compared_by_the_likelihood_of_each_text() -> None:
    problem, tokens = LanguageModel(), np.array([10.0, 20.0])
    ours = np.array([[2.0, 10.0], [2.0, 20.0]], np.float32)
    theirs = np.array([[4.0, 5.0], [2.0, 25.0]], np.float32)  # 20 and 50 nats, against 20 and 40
    columns: dict[str, Any] = {"digest": np.arange(2, dtype=np.uint64), "label": tokens}
    for name, predictions in (("candidate", ours), ("champion", theirs)):
        columns |= {name + end: values for end, values in problem.row_columns(tokens, predictions).items()}
    compared = gate_of(problem.name).outcomes(pa.table(columns), "champion").compared("better", 0.0)
    assert (compared.gained, compared.lost) == (1, 0)
    assert compared.difference == pytest.approx(10 / 30)
    assert compared.reference_error == pytest.approx(70 / 30)


def test_predict_writes_losses_and_sums_them_by_tokens() -> None:
    outputs, predictions = TextOutputs(), np.array([[5.0, 1.0], [1.0, 9.0]], np.float32)
    columns = {name: values.to_pylist() for name, values in outputs.columns(predictions).items()}
    assert columns["loss_per_token"] == [5.0, 1.0]
    assert columns["tokens"] == [1, 9]
    assert columns["perplexity"] == pytest.approx([math.exp(5), math.e])
    totals = outputs.totals()
    assert totals.summary() == {}
    totals.add(predictions[:1])
    totals.add(predictions[1:])
    assert totals.summary() == {"value": "loss per token", "mean": 1.4, "least": 1.0, "most": 5.0}


@pytest.mark.parametrize("tokens", [[7.0], [7.0, 30.0, 13.0]], ids=["one text", "equal losses"])
def test_no_interval_is_printed_if_the_losses_do_not_vary(tokens: list[float]) -> None:
    predictions = np.array([[2.3, count] for count in tokens], np.float32)
    result = score(np.array(tokens), predictions, 0.95, 1.0, 1.0)
    said = "9.974 (no interval: the losses per token of the test texts do not vary)"
    assert LanguageModel().not_finite(result) == []
    assert LanguageModel().headline(result).startswith(f"test perplexity {said}, 2.3000 nats per token")
    assert LanguageModel().in_words(result, "test texts").startswith(f"perplexity {said} on ")
