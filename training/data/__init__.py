"""Data: sources, preparation, dataset versions, and the order in which their rows are used."""
