"""Trainers: how the weights come about on a group of workers."""
