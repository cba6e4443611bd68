"""The trainer `accelerate`: a training loop that is part of the recipe, with Accelerate."""
