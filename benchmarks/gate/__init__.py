"""A year of nights on one test set, simulated: how often the gate promotes falsely, and what it finds."""
