"""What a dataset version looks like, and what changed between two of them."""
