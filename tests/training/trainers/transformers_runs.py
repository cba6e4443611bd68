"""Small trainings by the Trainer of Transformers."""

from pathlib import Path

# Random numbers in each batch and each step, and a schedule that depends on the number of all steps.
RECIPE = """
from evergreen import Augmentation, Digits, Recipe, Transformers

def build_model(shape, outputs):
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(ViTConfig(
        image_size=shape[1], patch_size=4, num_channels=shape[0], hidden_size=32, num_hidden_layers=1,
        num_attention_heads=2, intermediate_size=64, initializer_range=0.2, hidden_dropout_prob=0.1, num_labels=outputs,
    ))

trainer = Transformers(build_model, epochs=3, learning_rate=2e-3, weight_decay=0.01, warmup_steps=0.2)
recipe = Recipe("vit", "for a test", Digits(), trainer=trainer, augmentation=Augmentation(shift=1))
"""


def write_transformers(folder: Path, *changes: tuple[str, str]) -> str:
    """Write a recipe for handwritten digits, with parts of its text replaced; returns its path."""
    text = RECIPE
    for before, after in changes:
        assert before in text, before
        text = text.replace(before, after)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "vit.py").write_text(text)
    return str(folder / "vit.py")
