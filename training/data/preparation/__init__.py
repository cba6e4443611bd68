"""Preparation: converts the rows of a source into the part files of a dataset version."""
