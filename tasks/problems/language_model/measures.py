"""The measure by which looks compare language models: the loss per token, written as a perplexity."""

from tasks.gate.measures import Array
from tasks.problems.mean_loss import MeanLoss
from training.problems.language_model import perplexity_of, shown

MEASURE = "next_token_loss"


def _perplexity(loss: float) -> str:
    return shown(perplexity_of(loss))


def losses(tokens: Array, nats: Array) -> Array:
    """Losses of texts, whose mean is the loss per token: negative log-likelihoods / mean number of tokens."""
    text_losses: Array = nats / tokens.mean()
    return text_losses


LOSS_PER_TOKEN = MeanLoss("perplexity", "loss per token", "text", _perplexity, losses)
