"""Recipe for a language model of sentences of film reviews (Pang and Lee 2005): a small GPT-2, trained from scratch.

`--set data.path=FOLDER` names the folder with the files rt-polarity.pos and rt-polarity.neg.
"""

from typing import TYPE_CHECKING

from evergreen import (
    DataSettings,
    LanguageModel,
    Recipe,
    ScalingSettings,
    Settings,
    Text,
    TextShape,
    Transformers,
)

if TYPE_CHECKING:
    from torch import nn


def build_model(shape: TextShape, vocabulary: int) -> "nn.Module":
    """GPT-2 with 2 layers of width 128: 0.7 million weights with a vocabulary of 2,000 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=vocabulary,
        n_positions=shape[0],
        n_embd=128,
        n_layer=2,
        n_head=4,
        resid_pdrop=0.2,
        embd_pdrop=0.2,
        attn_pdrop=0.1,
        use_cache=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    model: nn.Module = GPT2LMHeadModel(config)
    return model


recipe = Recipe(
    name="rt-polarity-gpt2",
    summary="Sentences of film reviews as text alone: small GPT-2, trained from scratch",
    source=Text(),
    problem=LanguageModel(),
    trainer=Transformers(
        build_model,
        epochs=4,
        global_batch_size=64,
        learning_rate=2e-3,
        warmup_steps=0.1,
        weight_decay=0.1,
        adam_beta2=0.95,
    ),
    settings=Settings(data=DataSettings(vocabulary=2000), scaling=ScalingSettings(num_workers=2)),
)
