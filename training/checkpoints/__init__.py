"""Checkpoints as a commit log, and the weights of a finished model."""
