"""Evergreen keeps PyTorch models up to date. `python -m evergreen` is the `evergreen` command."""
