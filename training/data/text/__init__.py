"""Datasets of text: tokenizers, preparation of rows of token ids, and reading of the part files."""
