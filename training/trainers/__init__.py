"""Trainers: the code that computes the weights on one or more workers."""
