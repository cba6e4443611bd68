"""From rows of a source to the part files of a dataset version."""
