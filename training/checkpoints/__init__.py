"""Checkpoints of a training, kept as a commit log, and the weights files of finished models."""
