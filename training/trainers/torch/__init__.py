"""Evergreen's own PyTorch loop, alone or on several workers (DDP)."""
