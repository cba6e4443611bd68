"""Recipe for sentences of film reviews, positive or negative (Pang and Lee 2005): mean of learned token embeddings.

`--set data.path=FOLDER` names the folder with the files rt-polarity.pos and rt-polarity.neg.
"""

from typing import TYPE_CHECKING

from evergreen import GateSettings, Recipe, ScalingSettings, Settings, Text, TextShape, TrainingSettings

if TYPE_CHECKING:
    from torch import nn


def build_model(shape: TextShape, outputs: int) -> "nn.Module":
    """Embeddings of the tokens, averaged over the tokens that are no padding, and one linear layer."""
    import torch
    from torch import nn

    class MeanOfEmbeddings(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(shape.vocabulary, 96, padding_idx=shape.padding)
            self.dropout = nn.Dropout(0.5)
            self.head = nn.Linear(96, outputs)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            present = (ids != shape.padding).unsqueeze(2)
            mean = (self.embedding(ids) * present).sum(1) / present.sum(1).clamp(min=1)
            logits: torch.Tensor = self.head(self.dropout(mean))
            return logits

    return MeanOfEmbeddings()


recipe = Recipe(
    name="rt-polarity-mean",
    summary="Sentences of film reviews, positive or negative: mean of token embeddings",
    source=Text(),
    build_model=build_model,
    settings=Settings(
        training=TrainingSettings(epochs=8, global_batch_size=64, learning_rate=5e-3),
        scaling=ScalingSettings(num_workers=2),
        gate=GateSettings(floor=0.7),
    ),
)
