"""A small language model for tests: a tiny GPT-2 under Transformers, or a plain module, on texts without a target."""

from pathlib import Path

from small_texts import sentences

GPT2 = """
from evergreen import LanguageModel, Recipe, Text, Transformers

def build_model(shape, vocabulary):
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(
        vocab_size=vocabulary, n_positions=shape[0], n_embd=16, n_layer=1, n_head=2, initializer_range=0.1,
        use_cache=False, bos_token_id=None, eos_token_id=None,
    ))

trainer = Transformers(build_model, epochs=3, global_batch_size=40, learning_rate=1e-2)
recipe = Recipe("films", source=Text("films.txt"), problem=LanguageModel(), trainer=trainer)
"""
BIGRAMS = """
from evergreen import LanguageModel, Recipe, Text, Torch

def build_model(shape, vocabulary):
    from torch import nn

    return nn.Sequential(nn.Embedding(vocabulary, 16), nn.Linear(16, vocabulary))

recipe = Recipe("films", source=Text("films.txt"), problem=LanguageModel(), trainer=Torch(build_model))
"""


def write_lines(file: Path, rows: int) -> Path:
    """A text file with a text on each line."""
    file.write_text("\n".join(text for text, _ in sentences(rows)) + "\n")
    return file
