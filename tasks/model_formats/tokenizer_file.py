"""The tokenizer of a registered model on text: a file beside the program, with its digest in the model's metadata."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from training.data.manifest import TOKENIZER

EXTRA_FILES = Path("extra_files")  # MLflow's folder for files beside a model of PyTorch
TOKENIZER_FILE = EXTRA_FILES / TOKENIZER


def tokenizer_digest(metadata: Mapping[str, Any]) -> str:
    """sha256 of the tokenizer of a model on text, by the metadata of the model; empty for other models."""
    text = (metadata.get("table") or {}).get("text") or {}
    return str(text.get("tokenizer", ""))
