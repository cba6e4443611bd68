"""The model registry: versions, aliases, decisions, the lock of a model, and loading that runs no foreign code."""
