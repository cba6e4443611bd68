"""Datasets of images with a number to predict for each: preparation, and reading with the numbers as targets."""
