"""The model registry: versions, aliases, decisions, a lock for each model, and loading that runs no foreign code."""
