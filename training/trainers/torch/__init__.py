"""Evergreen's own PyTorch training loop, in one process or data-parallel on several workers (DDP)."""
