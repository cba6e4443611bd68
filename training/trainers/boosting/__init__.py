"""What the trainers of boosted trees share: rounds in blocks, the loop over them, the replay check."""
