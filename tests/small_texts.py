"""Real texts small enough for tests: sentences whose words decide their class, as CSV."""

import random
from pathlib import Path

GOOD = ("good", "lovely", "funny", "bright", "moving")
BAD = ("bad", "boring", "dull", "clumsy", "noisy")
_OTHER = ("the", "film", "is", "and", "a", "story", "with", "its", "actors", "scene", "of", "music")


def sentences(rows: int, seed: int = 0) -> list[tuple[str, str]]:
    """Distinct (text, class) pairs, of which half are "pos" and half are "neg"."""
    draw = random.Random(seed)
    made: dict[str, str] = {}
    while len(made) < rows:
        label = "neg" if len(made) % 2 else "pos"
        words = draw.choices(_OTHER, k=draw.randint(4, 8)) + draw.choices(
            GOOD if label == "pos" else BAD, k=3
        )
        draw.shuffle(words)
        made[" ".join(words)] = label
    return list(made.items())


def write_csv(file: Path, rows: int = 300, seed: int = 0) -> Path:
    """A CSV file with columns `text` and `label`."""
    lines = [f"{text},{label}" for text, label in sentences(rows, seed)]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(["text,label", *lines]) + "\n")
    return file


MODEL = """
def build_model(shape, outputs):
    from torch import nn

    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(shape.vocabulary, 16, padding_idx=shape.padding)
            self.head = nn.Linear(16, outputs)

        def forward(self, ids):
            present = (ids != shape.padding).unsqueeze(2)
            return self.head((self.embedding(ids) * present).sum(1) / present.sum(1).clamp(min=1))

    return Mean()
"""
