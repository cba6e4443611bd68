"""Hyperparameter search: the search space, the values of each trial, and the execution of the trials on Ray Tune."""
