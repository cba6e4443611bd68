"""Recipe for sentences of film reviews, positive or negative (Pang and Lee 2005): a small BERT, trained from scratch.

`--set data.path=FOLDER` names the folder with the files rt-polarity.pos and rt-polarity.neg.
"""

from typing import TYPE_CHECKING

from evergreen import GateSettings, Recipe, ScalingSettings, Settings, Text, TextShape, Transformers

if TYPE_CHECKING:
    from torch import nn


def build_model(shape: TextShape, outputs: int) -> "nn.Module":
    """BERT with 2 layers of width 128: 1.3 million weights with a vocabulary of 8,000 tokens."""
    from transformers import BertConfig, BertForSequenceClassification

    config = BertConfig(
        vocab_size=shape.vocabulary,
        pad_token_id=shape.padding,
        max_position_embeddings=shape[0],
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=256,
        hidden_dropout_prob=0.3,
        num_labels=outputs,
    )
    model: nn.Module = BertForSequenceClassification(config)
    return model


recipe = Recipe(
    name="rt-polarity",
    summary="Sentences of film reviews, positive or negative: small BERT, trained from scratch",
    source=Text(),
    trainer=Transformers(
        build_model,
        epochs=4,
        global_batch_size=64,
        learning_rate=5e-4,
        warmup_steps=0.1,
        weight_decay=0.01,
    ),
    settings=Settings(scaling=ScalingSettings(num_workers=2), gate=GateSettings(floor=0.7)),
)
