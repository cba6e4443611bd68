"""Evergreen's own training loop over a module: what the trainers `torch` and `keras` share."""
