"""Datasets of images with a number to predict for each image: preparation, and reading of the part files."""
